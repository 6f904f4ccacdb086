package iptables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// portalLab is a node with rules that lead to listeners, and clients everywhere.
type portalLab struct {
	*lab.Lab
	pod    *lab.Host
	kernel *iptables.Tools
	change route.Change
}

// The Services of a portalLab, at port 80 or a NodePort of each protocol.
const (
	clusterAddr, closedAddr = "172.30.0.41", "172.30.0.42"
	externalAddr            = "198.51.100.41"
	balancerAddr            = "198.51.100.42" // of the Outside only, with policy Local
	sharedNodePort          = 30080
	localNodePort           = 30081
)

func newPortalLab(t *testing.T, variant iptables.Variant) *portalLab {
	l := &portalLab{Lab: lab.New(t, lab.Options{})}
	l.pod = l.Pod(l.NodeA, "10.180.0.1", "fd00:10:180::1")
	if err := rtnl.New(l.NodeA.NetNSFD()).Change(t.Context(), "lo", listenerAddrs(), nil); err != nil {
		t.Fatal(err)
	}
	l.kernel = toolsIn(t, variant, l.NodeA.NetNSFD())
	l.change = toListeners(planetest.Compile(portalCluster(), route.Options{
		Detector:  route.DetectorOptions{Kind: route.DetectNodeCIDR},
		NodePorts: route.NodePortOptions{All: true, Loopback: route.LoopbackIncluded},
	}))
	for _, svc := range l.change.Table.Services {
		for _, p := range svc.Ports {
			for _, b := range append(append([]netip.AddrPort{}, p.Cluster...), p.Local...) {
				l.NodeA.Serve(p.Protocol, b.Port())
			}
		}
	}
	planetest.Load(t, newPortals(l.kernel), l.change)
	return l
}

func portalCluster() *cluster.Store {
	s := cluster.NewStore()
	s.SetNode(planetest.NewNode("10.180.0.0/24", "fd00:10:180::/64"))
	s.SetLocalAddresses(planetest.Addrs("127.0.0.1", "::1", "192.168.0.2", "192.168.1.2", "2001:db8::1", "2001:db8:1::2"))
	add := func(name, ip, endpoint string, tune func(*cluster.Service)) {
		svc := &cluster.Service{Name: cluster.Name{Namespace: "shop", Name: name}, ClusterIPs: both(ip)}
		sl := &cluster.Slice{Name: svc.Name, Service: svc.Name}
		sl6 := &cluster.Slice{Name: cluster.Name{Namespace: "shop", Name: name + "-6"}, Service: svc.Name}
		for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
			svc.Ports = append(svc.Ports, cluster.ServicePort{Name: p.String(), Protocol: p, Port: 80})
			sl.Ports = append(sl.Ports, cluster.SlicePort{Name: p.String(), Protocol: p, Port: 8080})
		}
		sl6.Ports = sl.Ports
		tune(svc)
		s.SetService(svc)
		if endpoint != "" {
			sl.Endpoints = append(sl.Endpoints, planetest.Endpoint(endpoint, "a"))
			sl6.Endpoints = append(sl6.Endpoints, planetest.Endpoint(lab.Analog(netip.MustParseAddr(endpoint)).String(), "a"))
		}
		s.SetSlice(sl)
		s.SetSlice(sl6)
	}
	nodePorts := func(svc *cluster.Service, port uint16) {
		svc.Type = cluster.LoadBalancer
		for i := range svc.Ports {
			svc.Ports[i].NodePort = port
		}
	}
	add("web", clusterAddr, "10.180.0.2", func(svc *cluster.Service) {
		nodePorts(svc, sharedNodePort)
		svc.ExternalIPs = both(externalAddr)
	})
	add("local", "172.30.0.43", "10.180.0.2", func(svc *cluster.Service) {
		nodePorts(svc, localNodePort)
		svc.ExternalLocal, svc.LoadBalancerIPs, svc.Restricted = true, both(balancerAddr), true
		svc.SourceRanges = planetest.Prefixes("203.0.113.2/32", "2001:db8:113::2/128")
	})
	add("closed", closedAddr, "", func(*cluster.Service) {})
	return s
}

// both returns an address and its counterpart of IPv6.
func both(a string) []netip.Addr {
	ip := netip.MustParseAddr(a)
	return []netip.Addr{ip, lab.Analog(ip)}
}

// listener returns the listener of a pool, for example of "web" and TCP.
func (l *portalLab) listener(t *testing.T, name string, like route.Port, pool route.Pool) netip.AddrPort {
	t.Helper()
	for _, p := range l.change.Table.Services[cluster.Name{Namespace: "shop", Name: name}].Ports {
		if p.Family == like.Family && p.Protocol == like.Protocol && len(p.Backends(pool)) == 1 {
			return p.Backends(pool)[0]
		}
	}
	t.Fatalf("no listener of %s for %v", name, like)
	return netip.AddrPort{}
}

// forEach runs a test with each variant of the programs, family and protocol.
func forEach(t *testing.T, test func(t *testing.T, l *portalLab, like route.Port)) {
	for _, variant := range variants() {
		t.Run(string(variant), func(t *testing.T) {
			l := newPortalLab(t, variant)
			for _, f := range route.Families() {
				for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
					t.Run(fmt.Sprintf("%s %s", f, p), func(t *testing.T) {
						test(t, l, route.Port{Family: f, Protocol: p})
					})
				}
			}
		})
	}
}

// addr returns an address of the family of a port, with a port.
func addr(like route.Port, ip string, port uint16) netip.AddrPort {
	a := netip.MustParseAddr(ip)
	if like.Family == route.IPv6 {
		a = lab.Analog(a)
	}
	return netip.AddrPortFrom(a, port)
}

// Connections reach the listener of their pool, which sees the address of the client.
func TestConnectionsReachListeners(t *testing.T) {
	forEach(t, func(t *testing.T, l *portalLab, like route.Port) {
		for _, c := range []struct {
			what    string
			from    *lab.Host
			to      string
			port    uint16
			service string
			pool    route.Pool
		}{
			{"a pod to a clusterIP", l.pod, clusterAddr, 80, "web", route.Cluster},
			{"the node to a clusterIP", l.NodeA, clusterAddr, 80, "web", route.Cluster},
			{"the outside to a clusterIP", l.Outside, clusterAddr, 80, "web", route.Cluster},
			{"a pod to an external IP", l.pod, externalAddr, 80, "web", route.Cluster},
			{"the node to an external IP", l.NodeA, externalAddr, 80, "web", route.Cluster},
			{"the outside to an external IP", l.Outside, externalAddr, 80, "web", route.Cluster},
			{"a pod to a NodePort", l.pod, "192.168.0.2", sharedNodePort, "web", route.Cluster},
			{"the node to a NodePort", l.NodeA, "192.168.0.2", sharedNodePort, "web", route.Cluster},
			{"the node to a NodePort at its other address", l.NodeA, "192.168.1.2", sharedNodePort, "web", route.Cluster},
			{"the outside to a NodePort", l.Outside, "192.168.0.2", sharedNodePort, "web", route.Cluster},
			{"another node to a NodePort", l.NodeB, "192.168.0.2", sharedNodePort, "web", route.Cluster},
			{"a pod to a NodePort with policy Local", l.pod, "192.168.0.2", localNodePort, "local", route.Cluster},
			{"the node to a NodePort with policy Local", l.NodeA, "192.168.0.2", localNodePort, "local", route.Cluster},
			{"the outside to a NodePort with policy Local", l.Outside, "192.168.0.2", localNodePort, "local", route.Local},
			{"the outside to a load balancer", l.Outside, balancerAddr, 80, "local", route.Local},
		} {
			want := l.listener(t, c.service, like, c.pool)
			r := c.from.Dial(like.Protocol, addr(like, c.to, c.port))
			if r.Outcome != lab.Answered || r.Backend.Port() != want.Port() || r.Masqueraded() {
				t.Errorf("%s: %s by a client at %s, want an answer by %s", c.what, r, r.Local, want)
			}
		}
		if like.Family == route.IPv4 { // IPv6 serves no NodePorts at loopback addresses, as in kube-proxy
			r := l.NodeA.Dial(like.Protocol, netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", sharedNodePort)))
			if r.Outcome != lab.Answered {
				t.Errorf("the node to a NodePort at 127.0.0.1: %s", r)
			}
		}
	})
}

// Nobody reaches a listener directly, and policy refuses and drops as it does without listeners.
func TestNobodyReachesListenersDirectly(t *testing.T) {
	seeds.Long(t)
	forEach(t, func(t *testing.T, l *portalLab, like route.Port) {
		var probes []lab.Probe
		for name, pool := range map[string]route.Pool{"web": route.Cluster, "local": route.Local} {
			probes = append(probes, lab.Probe{Protocol: like.Protocol, To: l.listener(t, name, like, pool), Timeout: lab.Soon})
		}
		for _, h := range []*lab.Host{l.Outside, l.NodeB} {
			at := listenerAddr(like.Family)
			h.Route(netip.PrefixFrom(at, at.BitLen()), l.NodeA.Addr(at))
		}
		for what, from := range map[string]*lab.Host{
			"a pod": l.pod, "the node": l.NodeA, "the outside": l.Outside, "another node": l.NodeB,
		} {
			for i, r := range from.TryAll(probes...) {
				if r.Outcome != lab.TimedOut {
					t.Errorf("%s to the listener at %s: %s, want no answer", what, probes[i].To, r)
				}
			}
		}
		if r := l.Blocked.Try(lab.Probe{
			Protocol: like.Protocol, To: addr(like, balancerAddr, 80), Timeout: lab.Soon,
		}); r.Outcome != lab.TimedOut {
			t.Errorf("a client outside of the source ranges: %s, want no answer", r)
		}
		if r := l.pod.Dial(like.Protocol, addr(like, closedAddr, 80)); r.Outcome != lab.Refused && r.Outcome != lab.Reset {
			t.Errorf("a pod to a Service without endpoints: %s", r)
		}
	})
}

// Connections to Services arrive on a node that accepts no others. Other ports stay closed.
func TestListenersPassAFirewall(t *testing.T) {
	forEach(t, func(t *testing.T, l *portalLab, like route.Port) {
		for f, icmp := range map[iptables.Family]string{iptables.IPv4: "icmp", iptables.IPv6: "ipv6-icmp"} {
			closed := "*filter\n:INPUT DROP\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n" +
				"-A INPUT -p " + icmp + " -j ACCEPT\nCOMMIT\n"
			if err := l.kernel.Restore(t.Context(), f, []byte(closed)); err != nil {
				t.Fatal(err)
			}
		}
		for what, from := range map[string]*lab.Host{"a pod": l.pod, "the node": l.NodeA, "the outside": l.Outside} {
			if r := from.Dial(like.Protocol, addr(like, clusterAddr, 80)); r.Outcome != lab.Answered {
				t.Errorf("%s: %s", what, r)
			}
		}
		l.NodeA.For(t).Serve(like.Protocol, 9999)
		if r := l.pod.Try(lab.Probe{
			Protocol: like.Protocol, To: addr(like, "192.168.0.2", 9999), Timeout: lab.Soon,
		}); r.Outcome != lab.TimedOut {
			t.Errorf("a pod to another port: %s, want no answer", r)
		}
	})
}
