package ebpf

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// The path of explain agrees with the rendered entries.
func TestPath(t *testing.T) {
	opt := route.Options{Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR}}
	table := planetest.Compile(planetest.EveryShape(), opt).Table
	path := pathOver(func(plane.Connection) []string { return []string{"packets"} })
	p := &Plane{}
	sockets, packets := 0, 0
	for _, svc := range table.Services {
		var rendered []string
		for _, e := range p.render(svc) {
			rendered = append(rendered, e.Key.String())
		}
		for i := range svc.Ports {
			port := &svc.Ports[i]
			for j, f := range port.Frontends {
				for _, client := range []struct {
					node bool
					way  route.Action
					name string
				}{{false, f.Pods, "pods"}, {true, f.Node, "the node"}} {
					got := path(plane.Connection{Service: svc, Port: i, Frontend: j, Inside: true, Node: client.node, Way: client.way})
					name := "frontends " + frontend{Frontend: &f}.at(port.Family).String() + "/" +
						protocolOf(port) + " for " + client.name
					there := slices.Contains(rendered, name)
					if is := got[0] != "packets"; is != there {
						t.Errorf("%s %s: path %v, but rendered: %t", svc.Name, name, got, there)
					}
					if there {
						sockets++
					} else {
						packets++
					}
				}
				if got := path(plane.Connection{Service: svc, Port: i, Frontend: j, Way: f.Others}); got[0] != "packets" {
					t.Errorf("%s: from outside %v", svc.Name, got)
				}
			}
		}
	}
	if sockets < 20 || packets < 20 {
		t.Errorf("%d frontends by sockets, %d by packets, want some of each", sockets, packets)
	}
}

func protocolOf(p *route.Port) string { return strings.ToLower(p.Protocol.String()) }

// The packet plane serves a pod that is a backend, or is not recognized by its address, and NodePorts at loopback
// addresses.
func TestPathOfCertainClients(t *testing.T) {
	opt := route.Options{
		Detector: route.DetectorOptions{
			Kind: route.DetectClusterCIDR, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		},
	}
	table := planetest.Compile(planetest.EveryShape(), opt).Table
	path := pathOver(func(plane.Connection) []string { return []string{"packets"} })
	byCIDR := route.Detector{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	byBridge := route.Detector{Interface: "cbr0"}
	loopback, known := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.99.0.1")
	pods, nodePorts := 0, 0
	for _, svc := range table.Services {
		for i := range svc.Ports {
			port := &svc.Ports[i]
			for j, f := range port.Frontends {
				p := plane.Connection{Service: svc, Port: i, Frontend: j, Inside: true, Way: f.Pods}
				if port.Family == route.IPv4 && path(p)[0] != "packets" {
					pods++
					backend := port.Backends(f.Pods.Pool)[0].Addr()
					for _, c := range []struct {
						client  netip.Addr
						by      *route.Detector
						packets bool
					}{
						{known, &byCIDR, false},
						{backend, &byCIDR, true},
						{netip.MustParseAddr("11.0.0.1"), &byCIDR, true},
						{known, &byBridge, true},
						{known, nil, false},
					} {
						p.Client, p.Detector = c.client, c.by
						if got := path(p); (got[0] == "packets") != c.packets {
							t.Errorf("%s: the path of %s with %+v is %v; want packets: %t", svc.Name, c.client, c.by, got, c.packets)
						}
					}
				}
				p = plane.Connection{Service: svc, Port: i, Frontend: j, Inside: true, Node: true, Way: f.Node}
				if f.Kind == route.NodePort && path(p)[0] != "packets" {
					nodePorts++
					if p.To = loopback; path(p)[0] != "packets" {
						t.Errorf("%s: the path of a NodePort at %s is %v", svc.Name, loopback, path(p))
					}
					p.To, p.Unserved = netip.Addr{}, true
					if path(p)[0] != "packets" {
						t.Errorf("%s: the path of a NodePort at an address that serves none is %v", svc.Name, path(p))
					}
				}
			}
		}
	}
	if pods == 0 || nodePorts == 0 {
		t.Errorf("%d frontends of pods, %d NodePorts, want some", pods, nodePorts)
	}
}
