package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// external makes a Service whose frontends use both pools.
func external(s *cluster.Service) {
	s.Type, s.ExternalLocal = cluster.LoadBalancer, true
	s.LoadBalancerIPs = ips("1.2.3.4")
}

// Endpoints are named by the last number of their address; our node is A in zone a.
func TestPools(t *testing.T) {
	tests := []struct {
		name           string
		endpoints      string
		cluster, local string
	}{
		{
			"S-133 S-134 ready ones win everywhere", "1.1.1.1 @A\n1.1.1.2 @A\n1.1.1.3 @A st\n1.1.1.4 @A t\n1.1.1.5 @B",
			"1 2 5", "1 2",
		},
		{
			"S-135 S-136 the local pool falls back on its own",
			"1.1.1.1 @A st\n1.1.1.2 @A st\n1.1.1.3 @A t\n1.1.1.4 @B", "4", "1 2",
		},
		{"S-137 S-138 only a remote one, terminating", "1.1.1.1 @B st", "1", ""},
		{"S-139 S-143 terminating and not serving", "1.1.1.1 @A t\n1.1.1.2 @B t", "", ""},
		{"S-140 ready ones before terminating ones", "1.1.1.1 @B st\n1.1.1.2 @B\n1.1.1.3 @C", "2 3", ""},
		{"S-141 all terminating, some serving", "1.1.1.1 @A st\n1.1.1.2 @A st\n1.1.1.3 @B st\n1.1.1.4 @B t", "1 2 3", "1 2"},
		{"S-145 local terminating, remote ready", "1.1.1.1 @A st\n1.1.1.2 @B", "2", "1"},
		{"S-146 published though not ready, terminating", "1.1.1.1 @A rt", "1", "1"},
		{"S-147 serving, not ready, not terminating", "1.1.1.1 @A s\n1.1.1.2 @B -", "", ""},
		{"S-149 ready without serving", "1.1.1.1 @A r", "1", "1"},
		{"S-151 an address of an old and a new pod", "1.1.1.1 @A st\n1.1.1.1 @A", "1", "1"},
		{"S-19 node unknown is remote", "1.1.1.1", "1", ""},
		{"S-119 S-176 hints do not narrow the local pool", "1.1.1.1 @A z=b\n1.1.1.2 @B z=a", "2", "1"},
		{"S-164 our zone", "1.1.1.1 z=a\n1.1.1.2 z=b\n1.1.1.3 z=c\n1.1.1.4 z=a", "1 4", ""},
		{"S-165 one lacks a zone", "1.1.1.1 z=a\n1.1.1.2 z=b\n1.1.1.3", "1 2 3", ""},
		{"S-167 none for our zone", "1.1.1.1 z=b\n1.1.1.2 z=c", "1 2", ""},
		{"S-168 those of our zone not ready", "1.1.1.1 z=a -\n1.1.1.2 z=b\n1.1.1.3 z=c", "2 3", ""},
		{"S-169 one of ours not ready", "1.1.1.1 z=a -\n1.1.1.2 z=a\n1.1.1.3 z=c", "2", ""},
		{"an unready one without hints does not count", "1.1.1.1 -\n1.1.1.2 z=a\n1.1.1.3 z=c", "2", ""},
		{"S-170 several zones", "1.1.1.1 z=b,a\n1.1.1.2 z=b,c\n1.1.1.3 z=a", "1 3", ""},
		{"S-171 our node", "1.1.1.1 @A n=A z=a\n1.1.1.2 @B n=B z=a", "1", "1"},
		{"S-172 no node hint for us, zones match", "1.1.1.1 n=B z=a\n1.1.1.2 n=C z=b", "1", ""},
		{"S-173 one without node hints, all with zones", "1.1.1.1 n=A z=a\n1.1.1.2 z=b\n1.1.1.3 z=a", "1 3", ""},
		{"S-174 one without any hints", "1.1.1.1 n=A z=a\n1.1.1.2", "1 2", ""},
		{"S-177 topology does not narrow the fallback", "1.1.1.1 st z=a\n1.1.1.2 st z=b\n1.1.1.3 st", "1 2 3", ""},
		{"S-180 node hints only, none for us", "1.1.1.1 n=B\n1.1.1.2 n=C", "1 2", ""},
		{"S-218 nothing", "", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := web(external)
			list := endpoints(t, tt.endpoints)
			got := compileOne(t, Options{}, svc, sliceOf(svc, "x", list))
			sameText(t, pools(got), "cluster "+tt.cluster+"\nlocal "+tt.local)

			// Neither the order of endpoints nor their spread over slices matters.
			rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			half := len(list) / 2
			again := compileOne(t, Options{}, svc, sliceOf(svc, "y", list[:half]), sliceOf(svc, "x", list[half:]))
			sameText(t, again.text(), got.text())
		})
	}
}

func pools(s *Service) string {
	last := func(pool Pool) string {
		var words []string
		for _, b := range s.Ports[0].Backends(pool) {
			words = append(words, fmt.Sprint(b.Addr().As4()[3]))
		}
		return strings.Join(words, " ")
	}
	return "cluster " + last(Cluster) + "\nlocal " + last(Local)
}

func TestZoneUnknown(t *testing.T) {
	for name, node := range map[string]*cluster.Node{
		"S-166 empty label": {Name: "A"},
		"no node yet":       nil,
	} {
		t.Run(name, func(t *testing.T) {
			svc := web()
			list := endpoints(t, "1.1.1.1 z=a\n1.1.1.2 z=b")
			c := NewCompiler(Options{NodeName: "A"})
			c.Compile(cluster.Delta{
				Services: []cluster.State{stateOf(svc, sliceOf(svc, "x", list))},
				Facts:    &cluster.Facts{Node: node},
			})
			sameText(t, pools(c.Table().Services[svc.Name]), "cluster 1 2\nlocal")
		})
	}
}

// Of several entries for a backend the same one is used, whatever their order.
func TestDuplicates(t *testing.T) {
	tests := []struct{ name, entries, want string }{
		{"terminating never wins", "1.1.1.1 @A st\n1.1.1.1 @B", "1.1.1.1 B"},
		{"ready before not ready", "1.1.1.1 @A -\n1.1.1.1 @B", "1.1.1.1 B"},
		{"known node before unknown", "1.1.1.1\n1.1.1.1 @B", "1.1.1.1 B"},
		{"serving before not", "1.1.1.1 @A t\n1.1.1.1 @B st", "1.1.1.1 B"},
		{"hints as the last resort", "1.1.1.1 @B z=b\n1.1.1.1 @B z=a\n1.1.1.1 @B n=C", "1.1.1.1 B"},
		{"and node hints before them", "1.1.1.1 @B n=C z=a\n1.1.1.1 @B n=A z=a\n1.1.1.1 @B n=B z=a", "1.1.1.1 B"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			list := endpoints(t, tt.entries)
			key := backendKey{portName{protocol: cluster.TCP}, IPv4}
			var first *cluster.Hints
			for turn := range list {
				all, n := gather(nil, []*cluster.Slice{sliceOf(web(), "x", list)}, key)
				if n != 1 || len(all) != len(list) {
					t.Fatalf("%d candidates of %d", n, len(all))
				}
				e := all[0].Endpoint
				sameText(t, e.Addr.String()+" "+e.Node, tt.want)
				if turn > 0 && fmt.Sprint(first) != fmt.Sprint(e.Hints) {
					t.Errorf("hints %v, before %v", e.Hints, first)
				}
				first = e.Hints
				list = append(slices.Clone(list[1:]), list[0])
			}
		})
	}
}

// Ports of slices belong to Service ports by name and protocol.
func TestPortMatch(t *testing.T) {
	svc := web(func(s *cluster.Service) {
		s.ClusterIPs = ips("172.30.0.41 fd00:172::41")
		s.Ports = []cluster.ServicePort{
			{Name: "https", Protocol: cluster.TCP, Port: 443},
			{Name: "dns-tcp", Protocol: cluster.TCP, Port: 53},
			{Name: "dns", Protocol: cluster.UDP, Port: 53},
			{Name: "dns-sctp", Protocol: cluster.SCTP, Port: 53},
		}
	})
	v4 := sliceOf(svc, "v4", endpoints(t, "10.180.0.1 @B"))
	v4.Ports = []cluster.SlicePort{
		{Name: "https", Protocol: cluster.TCP, Port: 8443},
		{Name: "dns-tcp", Protocol: cluster.TCP, Port: 5353},
		{Name: "dns", Protocol: cluster.UDP, Port: 53},
		{Name: "dns", Protocol: cluster.TCP, Port: 1},
		{Name: "dns-sctp", Protocol: cluster.SCTP, Port: 53},
	}
	other := sliceOf(svc, "other", endpoints(t, "10.180.0.2 @B")) // S-15
	other.Ports = []cluster.SlicePort{
		{Name: "https", Protocol: cluster.TCP, Port: 9443}, {Name: "dns", Protocol: cluster.UDP},
	}
	v6 := sliceOf(svc, "v6", endpoints(t, "fd00::1 @B"))
	v6.Ports = []cluster.SlicePort{{Name: "https", Protocol: cluster.TCP, Port: 8443}}

	var got strings.Builder
	for _, p := range compileOne(t, Options{}, svc, v4, other, v6).Ports {
		fmt.Fprintln(&got, p.Family, p.Name, p.Protocol, join(p.Cluster))
	}
	sameText(t, got.String(), `
		IPv4 https tcp 10.180.0.1:8443 10.180.0.2:9443
		IPv4 dns-tcp tcp 10.180.0.1:5353
		IPv4 dns udp 10.180.0.1:53
		IPv4 dns-sctp sctp 10.180.0.1:53
		IPv6 https tcp [fd00::1]:8443
		IPv6 dns-tcp tcp
		IPv6 dns udp
		IPv6 dns-sctp sctp`)
}

// Every endpoint of every slice gets an answer, even if it does not match the port.
func TestExplain(t *testing.T) {
	svc := web(external)
	one := sliceOf(svc, "one", endpoints(t, `
		1.1.1.1 @A z=a
		1.1.1.2 @B z=b
		1.1.1.3 @A -
		1.1.1.4 @A t
		1.1.1.5 @A st
		1.1.1.1 @A st
		fd00::1 @A`))
	two := sliceOf(svc, "two", endpoints(t, "1.1.1.9 @A"))
	two.Ports[0].Name = "other"

	c := NewCompiler(Options{NodeName: "A"})
	c.Compile(cluster.Delta{
		Services: []cluster.State{stateOf(svc, one, two)},
		Facts:    &cluster.Facts{Node: nodeA()},
	})
	port := &c.Table().Services[svc.Name].Ports[0]
	rest := `
		1.1.1.3:8080 web-one: not ready
		1.1.1.4:8080 web-one: terminating and not serving
		1.1.1.5:8080 web-one: terminating, while there are ready endpoints
		1.1.1.9:0 web-two: its slice has no port of this name and protocol
		[fd00::1]:8080 web-one: of the other IP family`
	first := `
		1.1.1.1:8080 web-one: chosen
		1.1.1.1:8080 web-one: another entry has the same address and port`
	sameText(t, explained(c.Snapshot().Explain(svc.Name, port, Cluster)),
		first+"\n1.1.1.2:8080 web-one: hinted to other zones"+rest)
	sameText(t, explained(c.Snapshot().Explain(svc.Name, port, Local)),
		first+"\n1.1.1.2:8080 web-one: not on this node"+rest)

	one.Endpoints[0].Hints = &cluster.Hints{Nodes: []string{"A"}}
	one.Endpoints[1].Hints = &cluster.Hints{Nodes: []string{"B"}}
	got := explained(c.Snapshot().Explain(svc.Name, port, Cluster))
	if !strings.Contains(got, "1.1.1.2:8080 web-one: hinted to other nodes") {
		t.Error(got)
	}
	if got := c.Snapshot().Explain(cluster.Name{Name: "unknown"}, port, Cluster); len(got) > 0 {
		t.Error("a Service nobody knows has endpoints:", got)
	}
}

func explained(list []Choice) string {
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintf(&b, "%s %s: %s\n", c.Backend, c.Slice.Name.Name, c.Reason)
	}
	return b.String()
}

// Explain agrees with the pools that planes get.
func TestExplainAgrees(t *testing.T) {
	svc := web(external)
	sl := sliceOf(svc, "x", endpoints(t, "1.1.1.1 @A st\n1.1.1.2 @B z=a\n1.1.1.3 @B z=b\n1.1.1.4 @A -"))
	c := NewCompiler(Options{NodeName: "A"})
	c.Compile(cluster.Delta{Services: []cluster.State{stateOf(svc, sl)}, Facts: &cluster.Facts{Node: nodeA()}})
	port := &c.Table().Services[svc.Name].Ports[0]
	for _, pool := range []Pool{Cluster, Local} {
		sameText(t, join(chosen(c.Snapshot().Explain(svc.Name, port, pool))), join(port.Backends(pool)))
	}
}
