package route

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Reason says why an endpoint is in a pool, or why not.
type Reason uint8

// The reasons.
const (
	Chosen      Reason = iota
	NotReady           // neither ready nor terminating
	NotServing         // terminating, and its readiness check fails
	Terminating        // terminating, and there are ready ones
	OtherNode          // hinted to other nodes, while some are hinted to this one
	OtherZone          // hinted to other zones, while some are hinted to this one
	NotLocal           // the pool holds endpoints on this node only
	Duplicate          // another entry for this address and port is used
	NoPort             // its slice has no port of this name and protocol
	WrongFamily        // of the other IP family
	Ejected            // connections to it failed
)

// String returns the reason in words.
func (r Reason) String() string {
	return [...]string{
		Chosen:      "chosen",
		NotReady:    "not ready",
		NotServing:  "terminating and not serving",
		Terminating: "terminating, while there are ready endpoints",
		OtherNode:   "hinted to other nodes",
		OtherZone:   "hinted to other zones",
		NotLocal:    "not on this node",
		Duplicate:   "another entry has the same address and port",
		NoPort:      "its slice has no port of this name and protocol",
		WrongFamily: "of the other IP family",
		Ejected:     "ejected, as connections failed",
	}[r]
}

// Choice is one endpoint and whether it is in a pool of a Port. The caller must not change the Slice and the Endpoint.
type Choice struct {
	Slice    *cluster.Slice
	Endpoint *cluster.Endpoint
	Backend  netip.AddrPort // port 0 with NoPort
	Reason   Reason
	Share    *cluster.Share // nil: connections to it did not fail lately
}

// backendKey selects the endpoints of a Port.
type backendKey struct {
	portName
	family Family
}

// portName is the name and protocol by which a Service port and a port of an EndpointSlice match.
type portName struct {
	name     string
	protocol cluster.Protocol
}

// gather appends every endpoint of the slices to list, which is empty. The first n are candidates, sorted by backend,
// without duplicates; the others have the reason why they are none. The order of slices and endpoints does not matter.
func gather(list []Choice, from []*cluster.Slice, key backendKey) (all []Choice, n int) {
	for i, sl := range from {
		before := len(list)
		one := supplies{slices: from[i : i+1]}
		one.each(key.portName, func(o offer) { list = appendChoices(list, o, key.family) })
		if len(list) == before {
			list = appendChoices(list, offer{slice: sl}, key.family)
		}
	}
	return list, sortCandidates(list)
}

// sortCandidates puts the candidates first, sorted by backend and without duplicates, and returns how many there are.
func sortCandidates(list []Choice) (n int) {
	slices.SortFunc(list, compareChoices)
	for i := range list {
		if list[i].Reason != Chosen {
			break
		}
		if n > 0 && list[i].Backend == list[n-1].Backend {
			list[i].Reason = Duplicate
			continue
		}
		list[n], list[i] = list[i], list[n]
		n++
	}
	return n
}

// offer is a slice and one of its ports.
type offer struct {
	slice *cluster.Slice
	port  uint16 // 0: none
}

// supplies are the endpoints of a Service.
type supplies struct {
	slices []*cluster.Slice

	// offers spare ports the search through every port of every slice. It is nil for a Service of one port.
	offers map[portName][]offer
}

func suppliesOf(st state) supplies {
	s := supplies{slices: st.slices}
	if len(st.service.Ports) < 2 {
		return s
	}
	s.offers = map[portName][]offer{}
	for _, sl := range st.slices {
		for _, p := range sl.Ports {
			if p.Port != 0 {
				k := portName{p.Name, p.Protocol}
				s.offers[k] = append(s.offers[k], offer{sl, p.Port})
			}
		}
	}
	return s
}

// each calls do with each slice that has a port of this name.
func (s supplies) each(name portName, do func(offer)) {
	if s.offers != nil {
		for _, o := range s.offers[name] {
			do(o)
		}
		return
	}
	for _, sl := range s.slices {
		for _, p := range sl.Ports {
			if p.Name == name.name && p.Protocol == name.protocol && p.Port != 0 {
				do(offer{sl, p.Port})
			}
		}
	}
}

// backends returns how many backends the ports have in all. A backend with several entries counts several times.
func (s supplies) backends(svc *cluster.Service) int {
	n := 0
	for _, p := range svc.Ports {
		s.each(portName{p.Name, p.Protocol}, func(o offer) { n += len(o.slice.Endpoints) })
	}
	return n
}

// candidates appends the candidates for a Port to list, which is empty: sorted by backend and without duplicates.
func (s supplies) candidates(list []Choice, key backendKey) []Choice {
	s.each(key.portName, func(o offer) { list = appendChoices(list, o, key.family) })
	return list[:sortCandidates(list)]
}

// appendChoices adds the endpoints of a slice at a port.
func appendChoices(list []Choice, from offer, f Family) []Choice {
	for i := range from.slice.Endpoints {
		e := &from.slice.Endpoints[i]
		c := Choice{Slice: from.slice, Endpoint: e, Backend: netip.AddrPortFrom(e.Addr, from.port)}
		switch {
		case FamilyOf(e.Addr) != f:
			c.Reason = WrongFamily
		case from.port == 0:
			c.Reason = NoPort
		}
		list = append(list, c)
	}
	return list
}

// compareChoices puts candidates first, sorted by backend, and of entries for one backend the one to use first.
func compareChoices(a, b Choice) int {
	if c := cmp.Compare(a.Reason, b.Reason); c != 0 {
		return c
	}
	if c := a.Backend.Compare(b.Backend); c != 0 {
		return c
	}
	return preference(a.Endpoint, b.Endpoint)
}

// preference sorts entries for one backend, the best one first. A terminating one comes last: a new pod may already
// have its address (S-151). The further criteria only make the result deterministic.
func preference(a, b *cluster.Endpoint) int {
	return cmp.Or(
		cmp.Compare(rank(a), rank(b)),
		strings.Compare(b.Node, a.Node), // known before unknown
		slices.Compare(hintsOf(a).Nodes, hintsOf(b).Nodes),
		slices.Compare(hintsOf(a).Zones, hintsOf(b).Zones),
	)
}

// rank is lower for a better condition; whether it terminates counts most.
func rank(e *cluster.Endpoint) int {
	r := 0
	if e.Terminating {
		r += 4
	}
	if !e.Ready {
		r += 2
	}
	if !e.Serving {
		r++
	}
	return r
}

// hintsOf returns the topology hints of an endpoint, which may have none.
func hintsOf(e *cluster.Endpoint) cluster.Hints {
	if e.Hints == nil {
		return cluster.Hints{}
	}
	return *e.Hints
}

// choose sets the reason of every candidate for the pool. It chooses the ready ones that the topology hints admit, or
// if none is ready, the ones that still serve while they terminate. Hints do not apply to the local pool (S-119).
func choose(candidates []Choice, pool Pool, v *view) {
	ready := false
	for i := range candidates {
		c := &candidates[i]
		c.Reason = Chosen
		if pool == Local && !v.local(c.Endpoint) {
			c.Reason = NotLocal
			continue
		}
		ready = ready || c.Endpoint.Ready
	}
	hints := noTopology
	if pool == Cluster {
		hints = topologyOf(candidates, v)
	}
	for i := range candidates {
		c := &candidates[i]
		switch {
		case c.Reason == NotLocal:
		case c.Endpoint.Ready:
			c.Reason = hints.judge(c.Endpoint, v)
		case c.Endpoint.Terminating && !c.Endpoint.Serving:
			c.Reason = NotServing
		case !c.Endpoint.Terminating:
			c.Reason = NotReady
		case ready:
			c.Reason = Terminating
		}
	}
	leaveOutEjected(candidates)
}

// usable reports whether an endpoint receives traffic if there is no better one.
func usable(c Choice) bool {
	e := c.Endpoint
	return e.Ready || e.Serving && e.Terminating
}

// topology says which hints apply.
type topology uint8

const (
	noTopology topology = iota
	sameNode
	sameZone
)

// topologyOf returns which hints apply. Hints apply if all ready candidates have them and one of them names this node
// or zone; node hints come before zone hints.
func topologyOf(candidates []Choice, v *view) topology {
	nodes, zones := true, true
	ourNode, ourZone := false, false
	for i := range candidates {
		e := candidates[i].Endpoint
		if !e.Ready {
			continue
		}
		hints := hintsOf(e)
		nodes = nodes && len(hints.Nodes) > 0
		zones = zones && len(hints.Zones) > 0
		ourNode = ourNode || v.node != "" && slices.Contains(hints.Nodes, v.node)
		ourZone = ourZone || v.zone != "" && slices.Contains(hints.Zones, v.zone)
	}
	switch {
	case nodes && ourNode:
		return sameNode
	case zones && ourZone:
		return sameZone
	}
	return noTopology
}

func (t topology) judge(e *cluster.Endpoint, v *view) Reason {
	switch {
	case t == sameNode && !slices.Contains(hintsOf(e).Nodes, v.node):
		return OtherNode
	case t == sameZone && !slices.Contains(hintsOf(e).Zones, v.zone):
		return OtherZone
	}
	return Chosen
}
