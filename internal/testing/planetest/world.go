// Package planetest has helpers for the tests of several planes: clusters that change at
// random, a cluster with every kind of Service, and a small plane in memory.
package planetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// World is a cluster that changes at random. Each change is also made in the Store.
type World struct {
	*rand.Rand
	Store    *cluster.Store
	services map[cluster.Name]*cluster.Service
	slices   map[cluster.Name]*cluster.Slice
	node     *cluster.Node
	cidrs    []netip.Prefix
	local    []netip.Addr
}

// NewWorld returns an empty World.
func NewWorld(r *rand.Rand) *World {
	return &World{
		Rand: r, Store: cluster.NewStore(),
		services: map[cluster.Name]*cluster.Service{}, slices: map[cluster.Name]*cluster.Slice{},
	}
}

// Fresh returns a new store with everything in the World.
func (w *World) Fresh() *cluster.Store {
	s := cluster.NewStore()
	for _, svc := range w.services {
		s.SetService(svc)
	}
	for _, sl := range w.slices {
		s.SetSlice(sl)
	}
	s.SetNode(w.node)
	s.SetServiceCIDRs(w.cidrs)
	s.SetLocalAddresses(w.local)
	return s
}

// Pick returns a random element of a list.
func Pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// Chance returns true once in n times on average.
func (w *World) Chance(n int) bool { return w.IntN(n) == 0 }

const worldServices = 7

func (w *World) serviceName() cluster.Name {
	return cluster.Name{Namespace: "ns", Name: fmt.Sprintf("s%d", w.IntN(worldServices))}
}

// Change makes a random change.
func (w *World) Change() {
	switch w.IntN(21) {
	case 0, 1, 2, 3:
		w.setService(w.service(w.serviceName()))
	case 4:
		name := w.serviceName()
		delete(w.services, name)
		w.Store.DeleteService(name)
	case 5, 6, 7, 8, 9:
		w.setSlice()
	case 10, 11, 12, 13, 14:
		w.moveEndpoint()
	case 15:
		if len(w.slices) > 0 {
			name := Pick(w.Rand, slices.SortedFunc(maps.Keys(w.slices), cluster.Name.Compare)...)
			delete(w.slices, name)
			w.Store.DeleteSlice(name)
		}
	case 16:
		w.node = Pick(w.Rand, nil, NewNode(), NewNode("10.180.0.0/24", "fd00:10:180::/64"),
			NewNode("10.180.0.0/24", "10.180.1.0/24"), NewNode("0.0.0.0/0", "::/0"), NewNode("255.255.255.0/24"))
		w.Store.SetNode(w.node)
	case 17:
		w.cidrs = Pick(w.Rand, nil, Prefixes("172.30.0.0/16", "fd00:172:30::/112"),
			Prefixes("172.30.0.0/24", "172.30.1.0/24"), Prefixes("172.30.0.0/16", "172.30.4.0/24", "::/0"))
		w.Store.SetServiceCIDRs(w.cidrs)
	case 18:
		w.local = Pick(w.Rand, nil, Addrs("127.0.0.1", "::1", "192.168.0.2", "2001:db8::1"),
			Addrs("127.0.0.1", "192.168.0.2", "192.168.0.3"))
		w.Store.SetLocalAddresses(w.local)
	case 19:
		w.changeAffinity()
	case 20:
		w.changeBalancing()
	}
}

func (w *World) setService(svc *cluster.Service) {
	w.services[svc.Name] = svc
	w.Store.SetService(svc)
}

// service returns a random Service. There are few addresses and ports, so that several Services claim the same ones.
func (w *World) service(name cluster.Name) *cluster.Service {
	few := func(format string) []netip.Addr {
		var all []netip.Addr
		for range w.IntN(3) {
			if a := netip.MustParseAddr(fmt.Sprintf(format, 1+w.IntN(3))); !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
		return all
	}
	svc := &cluster.Service{
		Name: name, Created: time.Unix(int64(w.IntN(5)), 0),
		Type: Pick(w.Rand, cluster.ClusterIP, cluster.NodePort, cluster.LoadBalancer),
		ClusterIPs: Addrs(
			fmt.Sprintf("172.30.0.%d", 1+w.IntN(9)), fmt.Sprintf("fd00:172:30::%d", 1+w.IntN(9)),
		)[:1+w.IntN(2)],
		ExternalIPs:     append(few("198.51.100.%d"), few("2001:db8:100::%d")...),
		LoadBalancerIPs: append(few("203.0.113.%d"), few("2001:db8:113::%d")...),
		InternalLocal:   w.Chance(4), ExternalLocal: w.Chance(3),
	}
	if svc.Type == cluster.LoadBalancer && svc.ExternalLocal {
		svc.HealthCheckNodePort = uint16(31000 + w.IntN(3))
	}
	if w.Chance(12) {
		svc.Ignored = "headless"
	}
	if w.Chance(3) {
		svc.Restricted = true
		svc.SourceRanges = Pick(w.Rand, nil, Prefixes("10.0.0.0/8", "10.1.0.0/16", "fd00::/8"),
			Prefixes("0.0.0.0/0", "::/0"), Prefixes("10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/24"))
	}
	if w.Chance(3) {
		svc.Affinity = Pick(w.Rand, time.Second, 3*time.Hour)
	}
	w.balancing(svc)
	for i, name := range []string{"", "web", "dns"}[w.IntN(3):] {
		svc.Ports = append(svc.Ports, cluster.ServicePort{
			Name:     name,
			Protocol: Pick(w.Rand, cluster.TCP, cluster.UDP, cluster.SCTP), Port: uint16(80 + w.IntN(2) + 10*i),
			NodePort: Pick(w.Rand, 0, uint16(30000+w.IntN(4))),
		})
	}
	return svc
}

// balancing sets how the endpoints of some Services are chosen.
func (w *World) balancing(svc *cluster.Service) {
	if w.Chance(3) {
		svc.Scheduler = Pick(w.Rand, "lc", "rr", "wlc", "lc", "rr", "wlc", "mh")
	}
	if w.Chance(3) {
		svc.Weights = map[string]uint16{
			Pick(w.Rand, "a", "b"): Pick[uint16](w.Rand, 0, 2, 300), "10.180.0.1": Pick[uint16](w.Rand, 0, 3),
		}
	}
	if w.Chance(4) {
		svc.SlowStart = Pick(w.Rand, time.Second, time.Hour)
	}
}

// changeBalancing changes how the endpoints of a Service are chosen.
func (w *World) changeBalancing() {
	if len(w.services) == 0 {
		return
	}
	svc := *w.services[Pick(w.Rand, slices.SortedFunc(maps.Keys(w.services), cluster.Name.Compare)...)]
	svc.Scheduler, svc.Weights, svc.SlowStart = "", nil, 0
	w.balancing(&svc)
	w.setService(&svc)
}

func (w *World) changeAffinity() {
	for _, name := range slices.SortedFunc(maps.Keys(w.services), cluster.Name.Compare) {
		if w.Chance(2) {
			svc := *w.services[name]
			svc.Affinity = Pick(w.Rand, 0, time.Second, time.Minute)
			w.setService(&svc)
			return
		}
	}
}

// setSlice adds or replaces an EndpointSlice.
func (w *World) setSlice() {
	svc := w.serviceName()
	format := Pick(w.Rand, "10.180.%d.%d", "fd00:10:180:%d::%d")
	sl := &cluster.Slice{
		Service: svc, Name: cluster.Name{Namespace: "ns", Name: fmt.Sprintf("%s-%d-%d", svc.Name, len(format), w.IntN(2))},
	}
	for _, name := range []string{"", "web", "dns"} {
		for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
			sl.Ports = append(sl.Ports, cluster.SlicePort{Name: name, Protocol: proto, Port: uint16(8080 + w.IntN(2))})
		}
	}
	for range w.IntN(7) {
		n := w.IntN(3)
		sl.Endpoints = append(sl.Endpoints,
			w.condition(Endpoint(fmt.Sprintf(format, n, 1+w.IntN(9)), []string{"a", "b", "c"}[n])))
	}
	w.slices[sl.Name] = sl
	w.Store.SetSlice(sl)
}

func (w *World) condition(e cluster.Endpoint) cluster.Endpoint {
	switch w.IntN(8) {
	case 0:
		e.Ready, e.Terminating = false, true
	case 1:
		e.Ready, e.Serving = false, false
	default:
		e.Ready, e.Serving, e.Terminating = true, true, false
	}
	return e
}

// moveEndpoint changes, adds or deletes one endpoint of a slice.
func (w *World) moveEndpoint() {
	names := slices.SortedFunc(maps.Keys(w.slices), cluster.Name.Compare)
	if len(names) == 0 {
		return
	}
	sl := *w.slices[Pick(w.Rand, names...)]
	sl.Endpoints = slices.Clone(sl.Endpoints)
	if len(sl.Endpoints) == 0 {
		return
	}
	i := w.IntN(len(sl.Endpoints))
	switch w.IntN(3) {
	case 0:
		sl.Endpoints[i] = w.condition(sl.Endpoints[i])
	case 1:
		sl.Endpoints = slices.Delete(sl.Endpoints, i, i+1)
	case 2:
		e := sl.Endpoints[i]
		for range 1 + w.IntN(20) {
			e.Addr = e.Addr.Next()
		}
		sl.Endpoints = append(sl.Endpoints, e)
	}
	w.slices[sl.Name] = &sl
	w.Store.SetSlice(&sl)
}

// Options returns a random configuration.
func (w *World) Options() route.Options {
	both := route.Families()
	opt := route.Options{
		NodeName: "a", MasqueradeAll: w.Chance(6),
		Families: Pick(w.Rand, both, both, both, both[:1], both[1:]),
		NodePorts: Pick(w.Rand, route.NodePortOptions{}, route.NodePortOptions{Primary: true},
			route.NodePortOptions{All: true, Localhost: true},
			route.NodePortOptions{CIDRs: Prefixes("192.168.0.0/24", "2001:db8::/64", "127.0.0.0/8")}),
	}
	opt.Detector = Pick(w.Rand, route.DetectorOptions{}, route.DetectorOptions{Kind: route.DetectNodeCIDR},
		route.DetectorOptions{Kind: route.DetectNodeCIDR}, route.DetectorOptions{Kind: route.DetectNodeCIDR},
		route.DetectorOptions{Kind: route.DetectClusterCIDR, CIDRs: Prefixes("10.0.0.0/8", "fd00::/16")},
		route.DetectorOptions{Kind: route.DetectBridge, Interface: "cbr0"},
		route.DetectorOptions{Kind: route.DetectInterfacePrefix, Interface: "veth"})
	return opt
}
