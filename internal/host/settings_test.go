package host_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/host"
)

const (
	maximum  = "net.netfilter.nf_conntrack_max"
	hashsize = "/sys/module/nf_conntrack/parameters/hashsize"
	oom      = "/proc/self/oom_score_adj"
)

// table is the limit of tracked connections, and the size of the table for it.
func table(limit, buckets string) []host.Setting {
	return []host.Setting{
		{Name: maximum, Value: limit, HostOnly: true},
		{Name: hashsize, Value: buckets, AtLeast: true, HostOnly: true},
	}
}

// The limit by CPUs has a bound, which overrides the minimum only if the limit by CPUs is
// above the bound (S-293, S-294, S-295).
func TestTheSizeFollowsTheCPUs(t *testing.T) {
	for _, tc := range []struct {
		name         string
		perCore, min int
		cpus         int
		want         []host.Setting
	}{
		{"the minimum equals what four ask for", 32768, 131072, 4, table("131072", "32768")},
		{"one asks for less than the minimum", 32768, 131072, 1, table("131072", "32768")},
		{"sixteen", 32768, 131072, 16, table("524288", "131072")},
		{"as many as the bound", 32768, 131072, 32, table("1048576", "262144")},
		{"more than the bound", 32768, 131072, 64, table("1048576", "262144")},
		{"a minimum above the bound", 32768, 2000000, 4, table("2000000", "500000")},
		{"a minimum above the bound, and CPUs too", 32768, 2000000, 64, table("1048576", "262144")},
		{"no minimum", 100, 0, 3, table("300", "75")},
		{"as many CPUs and connections as can be said", 1<<31 - 1, 1<<31 - 1, 8192, table("1048576", "262144")},
		{"left alone, minimum and all", 0, 131072, 64, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &config.Config{Conntrack: config.Conntrack{MaxPerCore: tc.perCore, Min: tc.min}}
			got := host.Lasting(c, tc.cpus)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Times are whole seconds; none leaves a setting as it is.
func TestTimeouts(t *testing.T) {
	c := &config.Config{Conntrack: config.Conntrack{
		TCPEstablished: 24 * time.Hour,
		TCPCloseWait:   3599*time.Second + 999*time.Millisecond,
		UDPStream:      time.Millisecond, // 0 would forget flows at once
		TCPBeLiberal:   true,
	}}
	want := []host.Setting{
		{Name: "net.netfilter.nf_conntrack_tcp_timeout_established", Value: "86400"},
		{Name: "net.netfilter.nf_conntrack_tcp_timeout_close_wait", Value: "3599"},
		{Name: "net.netfilter.nf_conntrack_udp_timeout_stream", Value: "1"},
		{Name: "net.netfilter.nf_conntrack_tcp_be_liberal", Value: "1"},
	}
	if diff := cmp.Diff(want, host.Lasting(c, 0)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	c = &config.Config{Conntrack: config.Conntrack{UDP: 90 * time.Second}}
	want = []host.Setting{{Name: "net.netfilter.nf_conntrack_udp_timeout", Value: "90"}}
	if diff := cmp.Diff(want, host.Lasting(c, 0)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Settings includes those of this process; Lasting leaves them out.
func TestLastingSettings(t *testing.T) {
	c := &config.Config{OOMScoreAdj: -999, Conntrack: config.Conntrack{UDP: time.Minute}}
	lasting := []host.Setting{{Name: "net.netfilter.nf_conntrack_udp_timeout", Value: "60"}}
	serving := append(lasting, host.Setting{Name: oom, Value: "-999"})
	if diff := cmp.Diff(serving, host.Settings(c, 4)); diff != "" {
		t.Errorf("serving (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(lasting, host.Lasting(c, 4)); diff != "" {
		t.Errorf("lasting (-want +got):\n%s", diff)
	}
}

// A range that only includes 127.0.0.1 does not count with LoopbackNamed.
func TestLoopbackMustBeNamed(t *testing.T) {
	for _, tc := range []struct {
		ports config.NodePorts
		want  bool
	}{
		{config.NodePorts{Localhost: true}, true},
		{config.NodePorts{CIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, true},
		{
			config.NodePorts{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.1/32")}},
			true,
		},
		{config.NodePorts{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}, false},
		{config.NodePorts{CIDRs: []netip.Prefix{netip.MustParsePrefix("::1/128")}}, false},
		{config.NodePorts{All: true}, false},
		{config.NodePorts{Primary: true}, false},
	} {
		if got := host.ServesLoopback(&config.Config{NodePorts: tc.ports}); got != tc.want {
			t.Errorf("%+v: %v, want %v", tc.ports, got, tc.want)
		}
	}
}

// In mode iptables it is enough that a range includes 127.0.0.0/8, unless
// localhostNodePorts is false.
func TestLoopbackIsIncludedInIptablesMode(t *testing.T) {
	cidrs := func(text string) config.NodePorts {
		return config.NodePorts{CIDRs: []netip.Prefix{netip.MustParsePrefix(text)}}
	}
	for _, tc := range []struct {
		ports config.NodePorts
		want  bool
	}{
		{config.NodePorts{}, true},
		{config.NodePorts{All: true}, true},
		{config.NodePorts{Localhost: true}, true},
		{cidrs("0.0.0.0/0"), true},
		{cidrs("127.0.0.1/32"), true},
		{cidrs("fd00::/64"), true}, // says nothing of IPv4
		{cidrs("10.0.0.0/8"), false},
		{config.NodePorts{Primary: true}, false},
	} {
		for rule, want := range map[config.Loopback]bool{config.LoopbackIncluded: tc.want, config.LoopbackNever: false} {
			if got := host.ServesLoopback(&config.Config{NodePorts: tc.ports, Loopback: rule}); got != want {
				t.Errorf("%+v, loopback %s: %v, want %v", tc.ports, rule, got, want)
			}
		}
	}
}
