package route

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

const everyLocal = "127.0.0.1 192.168.0.2 192.168.1.2 10.0.0.1 ::1 2001:db8::1 2001:db8:1::2"

func TestNodePortAddresses(t *testing.T) {
	tests := []struct {
		name  string
		opt   NodePortOptions
		facts cluster.Facts
		want  string
	}{
		{"S-57 S-58 nothing said", NodePortOptions{}, cluster.Facts{}, "all4 all6 []"},
		{"keyword all", NodePortOptions{All: true, Primary: true}, cluster.Facts{}, "all4 all6 []"},
		{"S-59 primary", NodePortOptions{Primary: true}, cluster.Facts{}, "[192.168.0.2 2001:db8::1]"},
		{
			"S-60 CIDRs",
			NodePortOptions{CIDRs: cidrs("192.168.0.0/24 192.168.1.0/24 2001:db8:1::/64")},
			cluster.Facts{},
			"[192.168.0.2 192.168.1.2 2001:db8:1::2]",
		},
		{
			"S-61 CIDRs of one family: all of the other",
			NodePortOptions{CIDRs: cidrs("192.168.0.0/24")},
			cluster.Facts{},
			"all6 [192.168.0.2]",
		},
		{
			"S-61 the other way round",
			NodePortOptions{CIDRs: cidrs("2001:db8:1::/64")},
			cluster.Facts{},
			"all4 [2001:db8:1::2]",
		},
		{
			"a zero CIDR is all of its family",
			NodePortOptions{CIDRs: cidrs("192.168.0.0/24 0.0.0.0/0"), Primary: true},
			cluster.Facts{},
			"all4 [2001:db8::1]",
		},
		{
			"primary and CIDRs",
			NodePortOptions{CIDRs: cidrs("10.0.0.0/8"), Primary: true},
			cluster.Facts{},
			"[10.0.0.1 192.168.0.2 2001:db8::1]",
		},
		{"CIDRs that match nothing", NodePortOptions{CIDRs: cidrs("203.0.113.0/24 2001:db8:9::/64")}, cluster.Facts{}, "[]"},
		{"S-66 a wide CIDR does not mean loopback", NodePortOptions{CIDRs: cidrs("64.0.0.0/2")}, cluster.Facts{}, "all6 []"},
		{"a CIDR in 127/8 does", NodePortOptions{CIDRs: cidrs("127.0.0.0/8 ::/0")}, cluster.Facts{}, "all6 [127.0.0.1]"},
		{
			"S-67 localhost and primary",
			NodePortOptions{Primary: true, Localhost: true},
			cluster.Facts{},
			"[127.0.0.1 192.168.0.2 2001:db8::1]",
		},
		{
			"S-65 localhost is IPv4 only",
			NodePortOptions{Localhost: true, CIDRs: cidrs("::1/128")},
			cluster.Facts{},
			"[127.0.0.1]",
		},
		{"localhost beside all", NodePortOptions{Localhost: true, All: true}, cluster.Facts{}, "all4 all6 [127.0.0.1]"},
		{
			"S-62 all, and loopback is included",
			NodePortOptions{All: true, Loopback: LoopbackIncluded},
			cluster.Facts{},
			"all4 all127 all6 []",
		},
		{
			"S-62 nothing said, and loopback is included",
			NodePortOptions{Loopback: LoopbackIncluded},
			cluster.Facts{},
			"all4 all127 all6 []",
		},
		{
			"a zero CIDR includes loopback, localhost adds nothing",
			NodePortOptions{CIDRs: cidrs("0.0.0.0/0 2001:db8::/32"), Localhost: true, Loopback: LoopbackIncluded},
			cluster.Facts{},
			"all4 all127 [2001:db8::1 2001:db8:1::2]",
		},
		{
			"S-63 all, and loopback never",
			NodePortOptions{All: true, Localhost: true, Loopback: LoopbackNever},
			cluster.Facts{},
			"all4 all6 []",
		},
		{
			"S-64 included where nothing holds it",
			NodePortOptions{CIDRs: cidrs("192.168.0.0/24"), Loopback: LoopbackIncluded},
			cluster.Facts{},
			"all6 [192.168.0.2]",
		},
		{
			"primary holds no loopback",
			NodePortOptions{Primary: true, Loopback: LoopbackIncluded},
			cluster.Facts{},
			"[192.168.0.2 2001:db8::1]",
		},
		{
			"a wide CIDR includes loopback",
			NodePortOptions{CIDRs: cidrs("64.0.0.0/2 ::/1"), Loopback: LoopbackIncluded},
			cluster.Facts{},
			"[127.0.0.1 2001:db8::1 2001:db8:1::2]",
		},
		{
			"S-65 IPv6 loopback is never included",
			NodePortOptions{CIDRs: cidrs("::/0 127.0.0.0/8"), Loopback: LoopbackIncluded},
			cluster.Facts{},
			"all6 [127.0.0.1]",
		},
		{
			"localhost alone, and loopback never: none",
			NodePortOptions{Localhost: true, Loopback: LoopbackNever},
			cluster.Facts{},
			"[]",
		},
		{
			"127/8 alone, and loopback never: none of IPv4",
			NodePortOptions{CIDRs: cidrs("127.0.0.0/8"), Loopback: LoopbackNever},
			cluster.Facts{},
			"all6 []",
		},
		{
			"L-19 no node yet: none",
			NodePortOptions{Primary: true},
			cluster.Facts{Node: &cluster.Node{}},
			"[] NodePorts are not served: node A has no address;",
		},
		{
			"L-19 no node yet, and localhost",
			NodePortOptions{Primary: true, Localhost: true},
			cluster.Facts{Node: &cluster.Node{}},
			"[127.0.0.1] NodePorts are not served at its primary address: node A has no address;",
		},
		{
			"L-19 no address of a family: none of it",
			NodePortOptions{Primary: true},
			cluster.Facts{Node: &cluster.Node{Addresses: ips("192.168.0.2")}},
			"[192.168.0.2]",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.facts.Local = ips(everyLocal)
			if tt.facts.Node == nil {
				tt.facts.Node = nodeA()
			}
			host, problems := compileHost(Options{NodeName: "A", NodePorts: tt.opt}, &tt.facts)
			sameText(t, nodePortText(host.NodePorts, problems), tt.want)
		})
	}
}

func nodePortText(n NodePorts, problems []Problem) string {
	var b strings.Builder
	if n.All(IPv4) {
		b.WriteString("all4 ")
	}
	if n.All127 {
		b.WriteString("all127 ")
	}
	if n.All(IPv6) {
		b.WriteString("all6 ")
	}
	fmt.Fprint(&b, n.Addrs)
	for _, p := range problems {
		what, _, _ := strings.Cut(p.Reason, ";")
		fmt.Fprintf(&b, " %s;", what)
	}
	return b.String()
}

func TestNodePortsOfOneFamily(t *testing.T) {
	facts := &cluster.Facts{Node: nodeA(), Local: ips(everyLocal)}
	for _, tt := range []struct {
		families []Family
		opt      NodePortOptions
		want     string
	}{
		{[]Family{IPv6}, NodePortOptions{Primary: true, Localhost: true}, "[2001:db8::1]"},
		{[]Family{IPv4}, NodePortOptions{CIDRs: cidrs("192.168.0.0/24 2001:db8:1::/64")}, "[192.168.0.2]"},
		{[]Family{IPv6}, NodePortOptions{}, "all6 []"},
		{[]Family{IPv6}, NodePortOptions{All: true, Loopback: LoopbackIncluded}, "all6 []"},
	} {
		host, problems := compileHost(Options{Families: tt.families, NodePorts: tt.opt}, facts)
		sameText(t, nodePortText(host.NodePorts, problems), tt.want)
	}
}

func TestDetector(t *testing.T) {
	tests := []struct {
		name     string
		opt      DetectorOptions
		families []Family
		want     Detector
	}{
		{"none", DetectorOptions{}, nil, Detector{}},
		{
			"cluster CIDRs, all of them (L-30)",
			DetectorOptions{Kind: DetectClusterCIDR, CIDRs: cidrs("fd00::/16 10.64.0.0/10 10.0.0.0/16")},
			nil,
			Detector{PodCIDRs: cidrs("10.0.0.0/16 10.64.0.0/10 fd00::/16")},
		},
		{
			"cluster CIDRs of a family in use",
			DetectorOptions{Kind: DetectClusterCIDR, CIDRs: cidrs("10.0.0.0/8 fd00::/16")},
			[]Family{IPv4},
			Detector{PodCIDRs: cidrs("10.0.0.0/8")},
		},
		{
			"S-55 node CIDRs",
			DetectorOptions{Kind: DetectNodeCIDR},
			nil,
			Detector{PodCIDRs: cidrs("10.180.0.0/24 fd00:10:180::/64")},
		},
		{"S-53 bridge", DetectorOptions{Kind: DetectBridge, Interface: "cbr0"}, nil, Detector{Interface: "cbr0"}},
		{"S-54 prefix", DetectorOptions{Kind: DetectInterfacePrefix, Interface: "veth"}, nil, Detector{Prefix: "veth"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			opt := Options{Detector: tt.opt, Families: tt.families}
			host, _ := compileHost(opt, &cluster.Facts{Node: nodeA()})
			if !reflect.DeepEqual(host.Detector, tt.want) {
				t.Errorf("got %+v, want %+v", host.Detector, tt.want)
			}
		})
	}
	if d := detector(Options{Detector: DetectorOptions{Kind: DetectNodeCIDR}}, nil); d.Detects(IPv4) || d.Detects(IPv6) {
		t.Error("without a node there are no node CIDRs")
	}
}

// ServiceCIDRs are sorted, and only of the families in use (S-312).
func TestServiceCIDRs(t *testing.T) {
	facts := &cluster.Facts{ServiceCIDRs: cidrs("fd00:172::/112 172.30.0.0/16 10.96.0.0/12")}
	host, _ := compileHost(Options{}, facts)
	sameText(t, join(host.ServiceCIDRs), "10.96.0.0/12 172.30.0.0/16 fd00:172::/112")
	host, _ = compileHost(Options{Families: []Family{IPv6}}, facts)
	sameText(t, join(host.ServiceCIDRs), "fd00:172::/112")
}

// Planes rely on it: the kernel refuses ranges that overlap, so what lies in another is left out.
func TestPrefixesAreDisjoint(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.0/8 10.0.0.0/8":                  "10.0.0.0/8",
		"10.1.0.0/16 10.0.0.0/8 11.0.0.0/8":      "10.0.0.0/8 11.0.0.0/8",
		"10.0.0.7/8":                             "10.0.0.0/8",
		"10.0.0.0/24 10.0.1.0/24":                "10.0.0.0/24 10.0.1.0/24",
		"0.0.0.0/0 255.255.255.255/32 0.0.0.0/1": "0.0.0.0/0",
		"fd00::/8 fd00::1/128 ::/0":              "::/0",
	} {
		if got := ofFamilies(cidrs(in), []Family{IPv4, IPv6}); !slices.Equal(got, cidrs(want)) {
			t.Errorf("%s: %v, want %s", in, got, want)
		}
	}
}

// NodePorts say whether they are served on addresses in 127.0.0.0/8.
func TestLoopbackRules(t *testing.T) {
	without, with := NodePorts{All4: true}, NodePorts{All4: true, All127: true}
	for _, tt := range []struct {
		ports NodePorts
		want  bool
	}{
		{without, false},
		{with, true},
		{NodePorts{All4: true, Addrs: ips("127.0.0.1")}, true},
		{NodePorts{Addrs: ips("::1 192.168.0.2")}, false},
	} {
		if got := tt.ports.Loopback4(); got != tt.want {
			t.Errorf("%+v: served on loopback %v, want %v", tt.ports, got, tt.want)
		}
	}
}

// A range that only includes 127.0.0.1 does not count with LoopbackNamed.
func TestLoopbackMustBeNamed(t *testing.T) {
	for _, tc := range []struct {
		ports NodePortOptions
		want  bool
	}{
		{NodePortOptions{Localhost: true}, true},
		{NodePortOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, true},
		{
			NodePortOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.1/32")}},
			true,
		},
		{NodePortOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}, false},
		{NodePortOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("::1/128")}}, false},
		{NodePortOptions{All: true}, false},
		{NodePortOptions{Primary: true}, false},
	} {
		if got := tc.ports.ServesLoopback(); got != tc.want {
			t.Errorf("%+v: %v, want %v", tc.ports, got, tc.want)
		}
	}
}

// In mode iptables it is enough that a range includes 127.0.0.0/8, unless localhostNodePorts is false.
func TestLoopbackIsIncludedInIptablesMode(t *testing.T) {
	cidrs := func(text string) NodePortOptions {
		return NodePortOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix(text)}}
	}
	for _, tc := range []struct {
		ports NodePortOptions
		want  bool
	}{
		{NodePortOptions{}, true},
		{NodePortOptions{All: true}, true},
		{NodePortOptions{Localhost: true}, true},
		{cidrs("0.0.0.0/0"), true},
		{cidrs("127.0.0.1/32"), true},
		{cidrs("fd00::/64"), true}, // says nothing of IPv4
		{cidrs("10.0.0.0/8"), false},
		{NodePortOptions{Primary: true}, false},
	} {
		for rule, want := range map[Loopback]bool{LoopbackIncluded: tc.want, LoopbackNever: false} {
			tc.ports.Loopback = rule
			if got := tc.ports.ServesLoopback(); got != want {
				t.Errorf("%+v: %v, want %v", tc.ports, got, want)
			}
		}
	}
}
