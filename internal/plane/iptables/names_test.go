package iptables

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// Names of chains that kube-proxy has on real nodes.
func TestNamesAreKubeProxys(t *testing.T) {
	for _, c := range []struct {
		service, port string
		protocol      cluster.Protocol
		backend       string
		want          string
	}{
		{"default/kubernetes", "https", cluster.TCP, "", "KUBE-SVC-NPX46M4PTMTKRN6Y"},
		{"ns1/svc1", "p80", cluster.TCP, "", "KUBE-SVC-XPGD46QRK7WJZT7O"},
		{"ns1/svc1", "p80", cluster.TCP, "10.180.0.1:80", "KUBE-SEP-SXIVWICOYRO3J4NJ"},
	} {
		namespace, name, _ := strings.Cut(c.service, "/")
		svc := &route.Service{
			Name:  cluster.Name{Namespace: namespace, Name: name},
			Ports: []route.Port{{Name: c.port, Protocol: c.protocol, Family: route.IPv4}},
		}
		id := idOf(svc.Ports[0].ID(svc.Name))
		got := id.pool(route.Cluster)
		if c.backend != "" {
			got = id.endpoint(netip.MustParseAddrPort(c.backend).String())
		}
		if got != c.want {
			t.Errorf("%s:%s %s is %s, want %s", c.service, c.port, c.backend, got, c.want)
		}
		for prefix, other := range map[string]string{
			"KUBE-SVL-": id.pool(route.Local), "KUBE-EXT-": id.external(), "KUBE-FW-": id.ranges(),
		} {
			if want := prefix + strings.TrimPrefix(id.pool(route.Cluster), "KUBE-SVC-"); other != want {
				t.Errorf("got %s, want %s", other, want)
			}
		}
	}
}

// Old publications have chain names for ports without a name from versions that kept the
// colon in the text; today it is left out. The hash function is the same.
func TestHashes(t *testing.T) {
	for text, want := range map[string]string{
		"default/mysql-service:tcp":                     "67RL4FN6JRUPOJYM",
		"default/mysql-service:tcp192.168.125.129:3306": "ID6YWIT3F6WNZ47P",
	} {
		if got := hash(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	svc := &route.Service{
		Name:  cluster.Name{Namespace: "default", Name: "mysql-service"},
		Ports: []route.Port{{Protocol: cluster.TCP, Family: route.IPv4}},
	}
	if got := idOf(svc.Ports[0].ID(svc.Name)); got != (id{"default/mysql-service", "default/mysql-servicetcp"}) {
		t.Errorf("a port without a name is %q", got)
	}
}

// A probability of 1/n, as the kernel keeps it and iptables-save prints it. The last endpoint needs no probability.
func TestProbabilities(t *testing.T) {
	for of, want := range map[int]string{
		1: "", 2: "0.50000000000", 3: "0.33333333349", 7: "0.14285714272", 1000: "0.00100000016",
	} {
		if want != "" {
			want = "statistic --mode random --probability " + want
		}
		if got := chance(1, of); got != want {
			t.Errorf("one of %d: %q, want %q", of, got, want)
		}
	}
}

// Names of the maximum length are not truncated to equal ones, and the kernel keeps the comments.
func TestLongestNames(t *testing.T) {
	long := strings.Repeat("n", 63)
	s := cluster.NewStore()
	for i, last := range []string{"a", "b"} {
		name := cluster.Name{Namespace: long, Name: long[1:] + last}
		svc := &cluster.Service{
			Name: name, Type: cluster.LoadBalancer, Restricted: true, SourceRanges: planetest.Prefixes("fd00::/16"),
			ClusterIPs: planetest.Addrs("fd00:172:30::" + last), LoadBalancerIPs: planetest.Addrs("2001:db8::" + last),
		}
		sl := &cluster.Slice{Name: name, Service: name}
		for k := range 2 {
			port := long[1:] + string(rune('a'+k))
			svc.Ports = append(svc.Ports, cluster.ServicePort{
				Name: port, Protocol: cluster.SCTP, Port: 60000 + uint16(k), NodePort: 30000 + uint16(2*i+k),
			})
			sl.Ports = append(sl.Ports, cluster.SlicePort{Name: port, Protocol: cluster.SCTP, Port: 60000})
		}
		sl.Endpoints = append(sl.Endpoints, planetest.Endpoint("fd00:1111:2222:3333:4444:5555:6666:7777", "a"),
			planetest.Endpoint("fd00:1111:2222:3333:4444:5555:6666:8888", "a"))
		s.SetService(svc)
		s.SetSlice(sl)
	}
	change := planetest.Compile(s, route.Options{})
	for _, variant := range variants() {
		kernel, _ := realKernel(t, variant)
		load(t, kernel, change)
		checkSettled(t, kernel, change.Table)
	}
}

// Ports that differ only in the protocol share the rule for health checks of their Service,
// which exists as long as one of them does.
func TestUnnamedPortsShareTheRuleForHealthChecks(t *testing.T) {
	s := newTestCluster(t, newFake(), nodeCIDR())
	for _, protocols := range [][]cluster.Protocol{{cluster.TCP, cluster.UDP}, {cluster.TCP}, {cluster.TCP, cluster.UDP}} {
		s.service("dns", "172.30.0.10", func(svc *cluster.Service) {
			svc.Type, svc.ExternalLocal, svc.HealthCheckNodePort, svc.Ports = cluster.LoadBalancer, true, 31000, nil
			for _, p := range protocols {
				svc.Ports = append(svc.Ports, cluster.ServicePort{Protocol: p, Port: 53, NodePort: 30053})
			}
		})
		s.sync()
		s.checkSettled()
	}
	s.remove("dns")
	s.sync()
	s.checkSettled()
}

// Each rule is rendered in the canonical spelling, in which rules are compared.
func TestRulesAreCanonical(t *testing.T) {
	for name, opt := range planetest.Detectors() {
		opt.NodePorts = route.NodePortOptions{All: true, Loopback: route.LoopbackIncluded}
		change := planetest.Compile(planetest.EveryShape(), opt)
		o := Options{Families: route.Families(), Mark: testMark, Accounting: noObjects{}}
		for _, f := range families(o) {
			f.guarded = true
			entries := f.hostEntries(&change.Table.Host, o)
			for _, svc := range change.Table.Services {
				entries = append(entries, f.render(svc, &change.Table.Host)...)
			}
			for _, e := range entries {
				for rule := range split(e.Key.rule + "\n" + e.Value) {
					if want := iptables.Canonical(rule); rule != want {
						t.Errorf("%s: %s has\n%s\nwant\n%s", name, e.Key.chain, rule, want)
					}
				}
			}
		}
	}
}
