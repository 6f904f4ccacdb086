package nftables

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

// world is a random cluster that changes at random. All it holds is also in
// the store; what is not, after a restart, is told anew.
type world struct {
	*rand.Rand
	store    *cluster.Store
	services map[cluster.Name]*cluster.Service
	slices   map[cluster.Name]*cluster.Slice
	node     *cluster.Node
	cidrs    []netip.Prefix
	local    []netip.Addr
}

func newWorld(r *rand.Rand) *world {
	return &world{
		Rand: r, store: cluster.NewStore(),
		services: map[cluster.Name]*cluster.Service{}, slices: map[cluster.Name]*cluster.Slice{},
	}
}

// fresh returns a store that is told everything at once.
func (w *world) fresh() *cluster.Store {
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

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// one in n.
func (w *world) chance(n int) bool { return w.IntN(n) == 0 }

const worldServices = 7

func (w *world) serviceName() cluster.Name {
	return cluster.Name{Namespace: "ns", Name: fmt.Sprintf("s%d", w.IntN(worldServices))}
}

// change changes something.
func (w *world) change() {
	switch w.IntN(20) {
	case 0, 1, 2, 3:
		w.setService(w.service(w.serviceName()))
	case 4:
		name := w.serviceName()
		delete(w.services, name)
		w.store.DeleteService(name)
	case 5, 6, 7, 8, 9:
		w.setSlice()
	case 10, 11, 12, 13, 14:
		w.moveEndpoint()
	case 15:
		for name := range w.slices {
			delete(w.slices, name)
			w.store.DeleteSlice(name)
			break
		}
	case 16:
		w.node = pick(w.Rand, nil, node(), node("10.180.0.0/24", "fd00:10:180::/64"),
			node("10.180.0.0/24", "10.180.1.0/24"), node("0.0.0.0/0", "::/0"), node("255.255.255.0/24"))
		w.store.SetNode(w.node)
	case 17:
		w.cidrs = pick(w.Rand, nil, prefixes("172.30.0.0/16", "fd00:172:30::/112"),
			prefixes("172.30.0.0/24", "172.30.1.0/24"), prefixes("172.30.0.0/16", "172.30.4.0/24", "::/0"))
		w.store.SetServiceCIDRs(w.cidrs)
	case 18:
		w.local = pick(w.Rand, nil, addrs("127.0.0.1", "::1", "192.168.0.2", "2001:db8::1"),
			addrs("127.0.0.1", "192.168.0.2", "192.168.0.3"))
		w.store.SetLocalAddresses(w.local)
	case 19:
		w.changeAffinity()
	}
}

func (w *world) setService(svc *cluster.Service) {
	w.services[svc.Name] = svc
	w.store.SetService(svc)
}

// service makes one up. Addresses and ports are few, so that they are contested.
func (w *world) service(name cluster.Name) *cluster.Service {
	few := func(format string, n int) []netip.Addr {
		var all []netip.Addr
		for range w.IntN(3) {
			if a := netip.MustParseAddr(fmt.Sprintf(format, 1+w.IntN(n))); !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
		return all
	}
	svc := &cluster.Service{
		Name: name, Created: time.Unix(int64(w.IntN(5)), 0),
		Type:            pick(w.Rand, cluster.ClusterIP, cluster.NodePort, cluster.LoadBalancer),
		ClusterIPs:      addrs(fmt.Sprintf("172.30.0.%d", 1+w.IntN(9)), fmt.Sprintf("fd00:172:30::%d", 1+w.IntN(9)))[:1+w.IntN(2)],
		ExternalIPs:     append(few("198.51.100.%d", 3), few("2001:db8:100::%d", 3)...),
		LoadBalancerIPs: append(few("203.0.113.%d", 3), few("2001:db8:113::%d", 3)...),
		InternalLocal:   w.chance(4), ExternalLocal: w.chance(3),
	}
	if w.chance(12) {
		svc.Ignored = "headless"
	}
	if w.chance(3) {
		svc.Restricted = true
		svc.SourceRanges = pick(w.Rand, nil, prefixes("10.0.0.0/8", "10.1.0.0/16", "fd00::/8"),
			prefixes("0.0.0.0/0", "::/0"), prefixes("10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/24"))
	}
	if w.chance(3) {
		svc.Affinity = pick(w.Rand, time.Second, 3*time.Hour)
	}
	for i, name := range []string{"", "web", "dns"}[w.IntN(3):] {
		svc.Ports = append(svc.Ports, cluster.ServicePort{
			Name:     name,
			Protocol: pick(w.Rand, cluster.TCP, cluster.UDP, cluster.SCTP), Port: uint16(80 + w.IntN(2) + 10*i),
			NodePort: pick(w.Rand, 0, uint16(30000+w.IntN(4))),
		})
	}
	return svc
}

func (w *world) changeAffinity() {
	for _, name := range slices.SortedFunc(maps.Keys(w.services), cluster.Name.Compare) {
		if w.chance(2) {
			svc := *w.services[name]
			svc.Affinity = pick(w.Rand, 0, time.Second, time.Minute)
			w.setService(&svc)
			return
		}
	}
}

// setSlice makes an EndpointSlice, or replaces it.
func (w *world) setSlice() {
	svc := w.serviceName()
	format := pick(w.Rand, "10.180.%d.%d", "fd00:10:180:%d::%d")
	sl := &cluster.Slice{Service: svc, Name: cluster.Name{Namespace: "ns", Name: fmt.Sprintf("%s-%d-%d", svc.Name, len(format), w.IntN(2))}}
	for _, name := range []string{"", "web", "dns"} {
		for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
			sl.Ports = append(sl.Ports, cluster.SlicePort{Name: name, Protocol: proto, Port: uint16(8080 + w.IntN(2))})
		}
	}
	for range w.IntN(7) {
		n := w.IntN(3)
		sl.Endpoints = append(sl.Endpoints, w.condition(endpoint(fmt.Sprintf(format, n, 1+w.IntN(9)), []string{"a", "b", "c"}[n])))
	}
	w.slices[sl.Name] = sl
	w.store.SetSlice(sl)
}

func (w *world) condition(e cluster.Endpoint) cluster.Endpoint {
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

// moveEndpoint changes one endpoint of a slice, adds one or takes one away.
func (w *world) moveEndpoint() {
	names := slices.SortedFunc(maps.Keys(w.slices), cluster.Name.Compare)
	if len(names) == 0 {
		return
	}
	sl := *w.slices[pick(w.Rand, names...)]
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
	w.store.SetSlice(&sl)
}

// options makes up a configuration.
func (w *world) options() route.Options {
	opt := route.Options{
		NodeName: "a", MasqueradeAll: w.chance(6),
		Families: pick(w.Rand, bothFamilies, bothFamilies, bothFamilies, bothFamilies[:1], bothFamilies[1:]),
		NodePorts: pick(w.Rand, route.NodePortOptions{}, route.NodePortOptions{Primary: true}, route.NodePortOptions{All: true, Localhost: true},
			route.NodePortOptions{CIDRs: prefixes("192.168.0.0/24", "2001:db8::/64", "127.0.0.0/8")}),
	}
	opt.Detector = pick(w.Rand, route.DetectorOptions{}, route.DetectorOptions{Kind: route.DetectNodeCIDR},
		route.DetectorOptions{Kind: route.DetectNodeCIDR}, route.DetectorOptions{Kind: route.DetectNodeCIDR},
		route.DetectorOptions{Kind: route.DetectClusterCIDR, CIDRs: prefixes("10.0.0.0/8", "fd00::/16")},
		route.DetectorOptions{Kind: route.DetectBridge, Interface: "cbr0"},
		route.DetectorOptions{Kind: route.DetectInterfacePrefix, Interface: "veth"})
	return opt
}
