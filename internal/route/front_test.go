package route

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// masqService is the fixture of the masquerade matrix (S-21 to S-52).
func masqService(changes ...func(*cluster.Service)) *cluster.Service {
	return web(append([]func(*cluster.Service){func(s *cluster.Service) {
		s.Type = cluster.LoadBalancer
		s.LoadBalancerIPs = ips("1.2.3.4")
		s.Ports[0].NodePort = 3001
	}}, changes...)...)
}

func itpLocal(s *cluster.Service) { s.InternalLocal = true }
func etpLocal(s *cluster.Service) { s.ExternalLocal = true }
func preserve(s *cluster.Service) { s.PreserveDestination = true }

func TestWays(t *testing.T) {
	const both, here, remote = "10.180.0.1 @A\n10.180.1.1 @B", "10.180.0.1 @A", "10.180.1.1 @B"
	detect := Options{Detector: clusterCIDR()}
	all := Options{Detector: clusterCIDR(), MasqueradeAll: true}
	tests := []struct {
		name               string
		opt                Options
		policy             func(*cluster.Service)
		endpoints          string
		internal, external string // ways of the ClusterIP, and of NodePort and VIP
	}{
		{
			"S-21 to S-29 both Cluster", detect, nil, both,
			"pods cluster, node cluster+masq, others cluster+masq", "pods cluster+masq, node cluster+masq, others cluster+masq",
		},
		{
			"S-30 to S-38 eTP Local", detect, etpLocal, both,
			"pods cluster, node cluster+masq, others cluster+masq", "pods cluster, node cluster+masq, others local",
		},
		{
			"S-39 to S-46 iTP Local", detect, itpLocal, both,
			"pods local, node local+masq, others local+masq", "pods cluster+masq, node cluster+masq, others cluster+masq",
		},
		{
			"S-47 no detector",
			Options{},
			nil, both,
			"pods cluster, node cluster, others cluster", "pods cluster+masq, node cluster+masq, others cluster+masq",
		},
		{
			"S-48 no detector, eTP Local",
			Options{},
			etpLocal, both,
			"pods cluster, node cluster, others cluster", "pods local, node cluster+masq, others local",
		},
		{
			"S-48 a detector of the other family only",
			Options{Detector: DetectorOptions{Kind: DetectClusterCIDR, CIDRs: cidrs("fd00::/16")}},
			etpLocal, both,
			"pods cluster, node cluster, others cluster", "pods local, node cluster+masq, others local",
		},
		{
			"S-49 masqueradeAll", all, etpLocal, both,
			"pods cluster+masq, node cluster+masq, others cluster+masq", "pods cluster, node cluster+masq, others local",
		},
		{
			"S-50 masqueradeAll, no detector",
			Options{MasqueradeAll: true},
			etpLocal, both,
			"pods cluster+masq, node cluster+masq, others cluster+masq", "pods local, node cluster+masq, others local",
		},
		{
			"S-53 bridge",
			Options{Detector: DetectorOptions{Kind: DetectBridge, Interface: "cbr0"}},
			etpLocal, both,
			"pods cluster, node cluster+masq, others cluster+masq", "pods cluster, node cluster+masq, others local",
		},
		{
			"S-54 interface prefix",
			Options{Detector: DetectorOptions{Kind: DetectInterfacePrefix, Interface: "veth"}},
			itpLocal, here,
			"pods local, node local+masq, others local+masq", "pods cluster+masq, node cluster+masq, others cluster+masq",
		},
		{
			"S-55 node CIDR",
			Options{Detector: DetectorOptions{Kind: DetectNodeCIDR}},
			nil, both,
			"pods cluster, node cluster+masq, others cluster+masq", "pods cluster+masq, node cluster+masq, others cluster+masq",
		},
		{
			"S-110 S-111 eTP Local, none local", detect, etpLocal, remote,
			"pods cluster, node cluster+masq, others cluster+masq", "pods cluster, node cluster+masq, others drop",
		},
		{
			"S-110 eTP Local, none local, no detector",
			Options{},
			etpLocal, remote,
			"pods cluster, node cluster, others cluster", "pods drop, node cluster+masq, others drop",
		},
		{
			"S-126 S-130 iTP Local, none local", detect, itpLocal, remote,
			"pods drop, node drop, others drop", "pods cluster+masq, node cluster+masq, others cluster+masq",
		},
		{
			"S-131 both Local, none local", detect, func(s *cluster.Service) { itpLocal(s); etpLocal(s) }, remote,
			"pods drop, node drop, others drop", "pods cluster, node cluster+masq, others drop",
		},
		{
			"S-127 S-139 S-153 S-156 S-158 none anywhere", detect, func(s *cluster.Service) {
				itpLocal(s)
				etpLocal(s)
			}, "10.180.0.1 @A t",
			"pods reject, node reject, others reject", "pods reject, node reject, others reject",
		},
		{
			"S-143 S-144 none anywhere, Cluster", detect, nil, "",
			"pods reject, node reject, others reject", "pods reject, node reject, others reject",
		},
		{
			"preserve-destination",
			Options{Detector: clusterCIDR(), PreserveDestination: true},
			preserve, both,
			"pods cluster, node cluster+masq, others cluster+masq", "pods cluster, node cluster+masq, others local",
		},
		{
			"preserve-destination, none local",
			Options{Detector: clusterCIDR(), PreserveDestination: true},
			preserve, remote,
			"pods cluster, node cluster+masq, others cluster+masq", "pods cluster, node cluster+masq, others drop",
		},
		{
			"preserve-destination, none anywhere",
			Options{Detector: clusterCIDR(), PreserveDestination: true},
			preserve, "",
			"pods reject, node reject, others reject", "pods reject, node reject, others reject",
		},
		{
			"preserve-destination in a plane that cannot", detect, preserve, both,
			"pods cluster, node cluster+masq, others cluster+masq", "pods cluster+masq, node cluster+masq, others cluster+masq",
		},
		{
			"S-137 S-138 eTP Local, a remote one terminating", detect, etpLocal, "10.180.1.1 @B st",
			"pods cluster, node cluster+masq, others cluster+masq", "pods cluster, node cluster+masq, others drop",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := masqService()
			if tt.policy != nil {
				tt.policy(svc)
			}
			got := compileOne(t, tt.opt, svc, sliceOf(svc, "x", endpoints(t, tt.endpoints)))
			sameText(t, frontends(got), `clusterIP 172.30.0.41:80: `+tt.internal+`
				loadBalancerIP 1.2.3.4:80: `+tt.external+`
				nodePort invalid AddrPort: `+tt.external)
		})
	}
}

// frontends are the lines of a route about connections of clients.
func frontends(s *Service) string {
	var b strings.Builder
	for line := range strings.Lines(s.text()) {
		if strings.Contains(line, "pods ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// A pool that no frontend points at is empty; Here follows the pools.
func TestPoolsInUse(t *testing.T) {
	const two = "10.180.0.1 @A\n10.180.1.1 @B\n10.180.2.1\n10.180.3.1 @A -"
	tests := []struct {
		name string
		svc  *cluster.Service
		want string
	}{
		{"ClusterIP only", web(), "cluster 10.180.0.1:8080 10.180.1.1:8080 10.180.2.1:8080\nhere 10.180.0.1 10.180.2.1"},
		{"S-124 iTP Local only", web(itpLocal), "local 10.180.0.1:8080\nhere 10.180.0.1"},
		{
			"S-52 both", web(external),
			"cluster 10.180.0.1:8080 10.180.1.1:8080 10.180.2.1:8080\nlocal 10.180.0.1:8080\nhere 10.180.0.1 10.180.2.1",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := compileOne(t, Options{}, tt.svc, sliceOf(tt.svc, "x", endpoints(t, two)))
			var lists []string
			for line := range strings.Lines(got.text()) {
				if !strings.Contains(line, "pods ") && !strings.Contains(line, "tcp IPv4") {
					lists = append(lists, line)
				}
			}
			sameText(t, strings.Join(lists, ""), tt.want)
		})
	}
}

// Here covers both pools when the local one has backends that the other does not have.
func TestHereIsTheUnionOfBothPools(t *testing.T) {
	svc := web(external)
	got := compileOne(t, Options{}, svc, sliceOf(svc, "x", endpoints(t, "1.1.1.1 @A st\n1.1.1.2")))
	sameText(t, join(got.Ports[0].Here), "1.1.1.1 1.1.1.2")
}

// Established UDP flows stay on every backend that serves (S-205 to S-207), and on every backend that gets new ones.
func TestServing(t *testing.T) {
	svc := web(itpLocal, func(s *cluster.Service) { s.Ports[0].Protocol = cluster.UDP })
	sl := sliceOf(svc, "x",
		endpoints(t, "1.1.1.1 @A\n1.1.1.2 @B st\n1.1.1.3 @B t\n1.1.1.4 @B -\n1.1.1.5 @B s\n1.1.1.6 @B r"))
	sl.Ports[0].Protocol = cluster.UDP
	sameText(t, join(compileOne(t, Options{}, svc, sl).Ports[0].Serving),
		"1.1.1.1:8080 1.1.1.2:8080 1.1.1.5:8080 1.1.1.6:8080")

	svc = web()
	if got := compileOne(t, Options{}, svc, sliceOf(svc, "x", endpoints(t, "1.1.1.1"))).Ports[0].Serving; got != nil {
		t.Error("kept for TCP:", got)
	}
}

// Where externalTrafficPolicy Local counts.
func TestExternalLocal(t *testing.T) {
	tests := []struct {
		name string
		svc  cluster.Service
		want bool
	}{
		{"S-118 ClusterIP type", cluster.Service{ExternalLocal: true}, false},
		{"ClusterIP type with a VIP", cluster.Service{ExternalLocal: true, LoadBalancerIPs: ips("1.2.3.4")}, false},
		{"ClusterIP type with external IPs", cluster.Service{ExternalLocal: true, ExternalIPs: ips("1.2.3.4")}, true},
		{"NodePort type", cluster.Service{ExternalLocal: true, Type: cluster.NodePort}, true},
		{"LoadBalancer type", cluster.Service{ExternalLocal: true, Type: cluster.LoadBalancer}, true},
		{"policy Cluster", cluster.Service{Type: cluster.LoadBalancer}, false},
	}
	for _, tt := range tests {
		if got := externalLocal(&tt.svc); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

func TestFrontends(t *testing.T) {
	full := func(s *cluster.Service) {
		s.Type = cluster.LoadBalancer
		s.ClusterIPs = ips("fd00:172::41 172.30.0.41")
		s.LoadBalancerIPs = ips("1.2.3.4 2001:db8::9")
		s.ExternalIPs = ips("192.168.99.11")
		s.Ports[0].NodePort = 3001
		s.Affinity = 3 * time.Hour
	}
	const reject = ": pods reject, node reject, others reject\n"
	const v4 = `"" tcp IPv4 sticky 3h0m0s
		clusterIP 172.30.0.41:80` + reject + `
		loadBalancerIP 1.2.3.4:80` + reject + `
		externalIP 192.168.99.11:80` + reject + `
		nodePort invalid AddrPort` + reject
	const v6 = `"" tcp IPv6 sticky 3h0m0s
		clusterIP [fd00:172::41]:80` + reject + `
		loadBalancerIP [2001:db8::9]:80` + reject + `
		nodePort invalid AddrPort` + reject
	const plain = `"" tcp IPv4
		clusterIP 172.30.0.41:80` + reject
	tests := []struct {
		name string
		opt  Options
		svc  *cluster.Service
		want string
	}{
		{"S-304 S-305 two families", Options{}, web(full), v4 + v6},
		{"IPv4 only", Options{Families: []Family{IPv4}}, web(full), v4},
		{"IPv6 only", Options{Families: []Family{IPv6}}, web(full), v6},
		{
			"S-303 no ClusterIP of a family: not there in it",
			Options{},
			web(full, func(s *cluster.Service) { s.ClusterIPs = ips("172.30.0.41") }), v4,
		},
		{
			"nothing in the families in use",
			Options{Families: []Family{IPv6}},
			web(),
			"ignored: no clusterIP of a family in use",
		},
		{
			"S-228 S-236 S-239 ignored",
			Options{},
			web(full, func(s *cluster.Service) { s.Ignored = "headless" }),
			"ignored: headless",
		},
		{
			"S-74 a ClusterIP Service has no NodePort",
			Options{},
			web(func(s *cluster.Service) { s.Ports[0].NodePort = 3001 }), plain,
		},
		{
			"S-101 S-230 no NodePort allocated",
			Options{},
			web(func(s *cluster.Service) { s.Type = cluster.LoadBalancer }), plain,
		},
		{
			"its own ClusterIP as external IP and VIP",
			Options{},
			web(func(s *cluster.Service) { s.ExternalIPs, s.LoadBalancerIPs = s.ClusterIPs, s.ClusterIPs }), plain,
		},
		{"no ports", Options{}, web(func(s *cluster.Service) { s.Ports = nil }), "ignored: no ports"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { sameText(t, compileOne(t, tt.opt, tt.svc).text(), tt.want) })
	}
}

// Source ranges hold for load balancer addresses, and for nothing else.
func TestGuard(t *testing.T) {
	const open = "open"
	tests := []struct {
		name, ranges string
		v4, v6       string
	}{
		{
			"S-81 S-82 S-83 node in the ranges, so the VIPs too (S-85)", "192.168.0.0/24 203.0.113.0/25",
			"[192.168.0.0/24 203.0.113.0/25 5.6.7.8/32 1.2.3.4/32]", "[]",
		},
		{"S-86 node not in the ranges", "203.0.113.0/25", "[203.0.113.0/25]", "[]"},
		{"S-89 everything", "203.0.113.0/25 0.0.0.0/0", open, "[]"},
		{"S-90 everything in halves", "0.0.0.0/1 128.0.0.0/1", "[0.0.0.0/1 128.0.0.0/1]", "[]"},
		{"S-91 nobody we know", "255.0.0.0/32", "[255.0.0.0/32]", "[]"},
		{"S-95 L-21 one family only closes the other", "2001:db8:9::/48", "[]", "[2001:db8:9::/48]"},
		{"S-308 each family with its own", "10.0.0.0/8 2001:db8::/64", "[10.0.0.0/8]", "[2001:db8::/64 2001:db8:f::99/128]"},
		{"a range in a range, host bits set", "10.1.0.0/16 10.1.2.3/8", "[10.0.0.0/8]", "[]"},
		{"S-253 nothing usable", "", "[]", "[]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := web(func(s *cluster.Service) {
				s.Type = cluster.LoadBalancer
				s.ClusterIPs = ips("172.30.0.41 fd00:172::41")
				s.LoadBalancerIPs = ips("5.6.7.8 1.2.3.4 2001:db8:f::99")
				s.ExternalIPs = ips("192.168.99.11")
				s.Ports[0].NodePort = 3001
				s.Restricted, s.SourceRanges = true, cidrs(tt.ranges)
			})
			for _, p := range compileOne(t, Options{}, svc).Ports {
				want := tt.v4
				if p.Family == IPv6 {
					want = tt.v6
				}
				for _, f := range p.Frontends {
					checkGuard(t, f, want)
				}
			}
		})
	}
	// S-92: no list, no limit.
	for _, f := range compileOne(t, Options{}, web(external)).Ports[0].Frontends {
		checkGuard(t, f, open)
	}
}

func checkGuard(t *testing.T, f Frontend, want string) {
	t.Helper()
	switch {
	case f.Kind != LoadBalancer || want == "open":
		if f.Restricted || len(f.Allow) > 0 {
			t.Errorf("%s %s is restricted to %v", f.Kind, f.Addr, f.Allow)
		}
	case !f.Restricted:
		t.Errorf("%s is open", f.Addr)
	case "["+join(f.Allow)+"]" != want:
		t.Errorf("%s allows %v, want %s", f.Addr, f.Allow, want)
	}
}
