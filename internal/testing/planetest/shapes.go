package planetest

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Addrs parses addresses.
func Addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// Prefixes parses prefixes.
func Prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// Endpoint returns a ready endpoint.
func Endpoint(addr, node string) cluster.Endpoint {
	return cluster.Endpoint{Addr: netip.MustParseAddr(addr), Node: node, Ready: true, Serving: true}
}

// NewNode returns the Node of the host.
func NewNode(podCIDRs ...string) *cluster.Node {
	return &cluster.Node{Name: "a", Addresses: Addrs("192.168.0.2", "2001:db8::1"), PodCIDRs: Prefixes(podCIDRs...)}
}

// EveryShape returns a cluster that needs every kind of rule and element.
func EveryShape() *cluster.Store {
	s := cluster.NewStore()
	s.SetNode(NewNode("10.180.0.0/24", "fd00:10:180::/64"))
	s.SetServiceCIDRs(Prefixes("172.30.0.0/16", "fd00:172:30::/112"))
	s.SetLocalAddresses(Addrs("127.0.0.1", "::1", "192.168.0.2", "192.168.1.2", "2001:db8::1"))
	i := 0
	for _, local := range []bool{false, true} {
		for _, restricted := range []bool{false, true} {
			for _, affinity := range []int{0, 1} {
				for _, endpoints := range []string{"none", "remote", "both"} {
					i++
					addShape(s, i, &cluster.Service{
						InternalLocal: local && restricted, ExternalLocal: local,
						PreserveDestination: restricted, Restricted: restricted, Affinity: time.Duration(affinity) * 3 * time.Hour,
					}, endpoints)
				}
			}
		}
	}
	for _, svc := range []*cluster.Service{
		{Scheduler: "mh"},
		{Scheduler: "lc", Weights: map[string]uint16{"a": 3}},
		{Weights: map[string]uint16{"a": 2, "10.180.1.27": 0}, SlowStart: time.Minute},
	} {
		i++
		addShape(s, i, svc, "both")
	}
	return s
}

func addShape(s *cluster.Store, i int, svc *cluster.Service, endpoints string) {
	svc.Name = cluster.Name{Namespace: "ns", Name: fmt.Sprintf("svc-%d", i)}
	svc.Type = cluster.LoadBalancer
	svc.ClusterIPs = Addrs(fmt.Sprintf("172.30.0.%d", i), fmt.Sprintf("fd00:172:30::%d", i))
	svc.ExternalIPs = Addrs(fmt.Sprintf("198.51.100.%d", i), fmt.Sprintf("2001:db8:100::%d", i))
	svc.LoadBalancerIPs = Addrs(fmt.Sprintf("203.0.113.%d", i), fmt.Sprintf("2001:db8:113::%d", i))
	if svc.Restricted {
		svc.SourceRanges = Prefixes("10.0.0.0/8", "10.1.0.0/16", "fd00::/8")
	}
	var ports []cluster.SlicePort
	for k, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		name := proto.String()
		svc.Ports = append(svc.Ports, cluster.ServicePort{
			Name: name, Protocol: proto, Port: 80, NodePort: uint16(30000 + 10*i + k),
		})
		ports = append(ports, cluster.SlicePort{Name: name, Protocol: proto, Port: 8080})
	}
	s.SetService(svc)
	for _, f := range []string{"10.180.%d.%d", "fd00:10:180:%d::%d"} {
		sl := &cluster.Slice{
			Name: cluster.Name{Namespace: "ns", Name: fmt.Sprintf("svc-%d-%d", i, len(f))}, Service: svc.Name, Ports: ports,
		}
		if endpoints != "none" {
			sl.Endpoints = append(sl.Endpoints, Endpoint(fmt.Sprintf(f, 1, i), "b"), Endpoint(fmt.Sprintf(f, 2, i), "b"))
		}
		if endpoints == "both" {
			sl.Endpoints = append(sl.Endpoints, Endpoint(fmt.Sprintf(f, 0, i), "a"))
		}
		s.SetSlice(sl)
	}
}

// Compile compiles everything that a store contains.
func Compile(s *cluster.Store, opt route.Options) route.Change {
	opt.NodeName = "a"
	change, _ := route.NewCompiler(opt).Compile(s.Take())
	return change
}

// Detectors returns options for every kind of rule that recognizes pods, and for other kinds of rules.
func Detectors() map[string]route.Options {
	return map[string]route.Options{
		"none":       {},
		"cidr":       {Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR}},
		"bridge":     {Detector: route.DetectorOptions{Kind: route.DetectBridge, Interface: "cbr0"}},
		"prefix":     {Detector: route.DetectorOptions{Kind: route.DetectInterfacePrefix, Interface: "veth"}},
		"masquerade": {MasqueradeAll: true},
		"primary":    {NodePorts: route.NodePortOptions{Primary: true, Localhost: true}},
	}
}
