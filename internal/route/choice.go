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
	NotReady           // neither ready nor on its way out
	NotServing         // terminating, and its readiness check fails
	Terminating        // terminating; there are ready ones to use
	OtherNode          // hinted to other nodes, while some are hinted to ours
	OtherZone          // hinted to other zones, while some are hinted to ours
	NotLocal           // the pool holds endpoints on this node only
	Duplicate          // another entry for this address and port is used
	NoPort             // its slice has no port of this name and protocol
	WrongFamily        // of the other IP family
)

// String returns the reason as people read it.
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
	}[r]
}

// Choice is what became of one endpoint for one pool of a Port. What it points
// at is not to be changed.
type Choice struct {
	Slice    *cluster.Slice
	Endpoint *cluster.Endpoint
	Backend  netip.AddrPort // port 0 with NoPort
	Reason   Reason
}

// backendKey is what makes an endpoint one of a Port.
type backendKey struct {
	name     string
	protocol cluster.Protocol
	family   Family
}

// gather appends every endpoint of the slices to list, which is empty. The
// first n are candidates, sorted by backend and without duplicates; the others
// carry the reason why they cannot be. The outcome does not depend on the
// order of slices and endpoints.
func gather(list []Choice, from []*cluster.Slice, key backendKey) (all []Choice, n int) {
	for _, sl := range from {
		before := len(list)
		list = appendMatching(list, sl, key)
		if len(list) == before {
			list = appendChoices(list, offer{slice: sl}, key.family)
		}
	}
	return list, sortCandidates(list)
}

// sortCandidates puts the candidates first, sorted by backend and without
// duplicates, and returns how many there are.
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

// supplyKey is what a port of a Service and one of a slice have in common.
type supplyKey struct {
	name     string
	protocol cluster.Protocol
}

// supplies are the endpoints of a Service. Ports find theirs without looking
// at every port of every slice.
type supplies struct {
	slices []*cluster.Slice
	offers map[supplyKey][]offer // nil: the Service has one port, which looks at all
}

func suppliesOf(st state) supplies {
	s := supplies{slices: st.slices}
	if len(st.service.Ports) < 2 {
		return s
	}
	s.offers = map[supplyKey][]offer{}
	for _, sl := range st.slices {
		for _, p := range sl.Ports {
			if p.Port != 0 {
				k := supplyKey{p.Name, p.Protocol}
				s.offers[k] = append(s.offers[k], offer{sl, p.Port})
			}
		}
	}
	return s
}

// backends returns how many backends the ports of the Service have in all, those
// with several entries for one counted for each.
func (s supplies) backends(svc *cluster.Service) int {
	n := 0
	for _, p := range svc.Ports {
		if s.offers == nil {
			n += matching(s.slices, p)
		}
		for _, o := range s.offers[supplyKey{p.Name, p.Protocol}] {
			n += len(o.slice.Endpoints)
		}
	}
	return n
}

// matching counts the endpoints of slices that have a port of the Service.
func matching(slices []*cluster.Slice, p cluster.ServicePort) int {
	n := 0
	for _, sl := range slices {
		for _, q := range sl.Ports {
			if q.Name == p.Name && q.Protocol == p.Protocol && q.Port != 0 {
				n += len(sl.Endpoints)
			}
		}
	}
	return n
}

// candidates appends the candidates for a Port to list, which is empty: sorted
// by backend and without duplicates.
func (s supplies) candidates(list []Choice, key backendKey) []Choice {
	if s.offers == nil {
		for _, sl := range s.slices {
			list = appendMatching(list, sl, key)
		}
	}
	for _, o := range s.offers[supplyKey{key.name, key.protocol}] {
		list = appendChoices(list, o, key.family)
	}
	return list[:sortCandidates(list)]
}

// appendMatching adds the endpoints of a slice at each of its ports that match.
func appendMatching(list []Choice, sl *cluster.Slice, key backendKey) []Choice {
	for _, p := range sl.Ports {
		if p.Name == key.name && p.Protocol == key.protocol && p.Port != 0 {
			list = appendChoices(list, offer{sl, p.Port}, key.family)
		}
	}
	return list
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

// compareChoices puts candidates first, sorts them by backend, and of entries
// for the same backend puts the one to use first.
func compareChoices(a, b Choice) int {
	if c := cmp.Compare(a.Reason, b.Reason); c != 0 {
		return c
	}
	if c := a.Backend.Compare(b.Backend); c != 0 {
		return c
	}
	return preference(a.Endpoint, b.Endpoint)
}

// preference orders entries for one backend. A terminating one never wins over
// another: its address may have been given to a new pod (S-151). The rest only
// makes the outcome the same every time.
func preference(a, b *cluster.Endpoint) int {
	return cmp.Or(
		cmp.Compare(rank(a), rank(b)),
		strings.Compare(b.Node, a.Node), // known before unknown
		slices.Compare(nodeHints(a), nodeHints(b)),
		slices.Compare(zoneHints(a), zoneHints(b)),
	)
}

// rank is lower for the better condition, terminating or not counting most.
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

func nodeHints(e *cluster.Endpoint) []string {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Nodes
}

func zoneHints(e *cluster.Endpoint) []string {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Zones
}

// choose sets the reason of every candidate for the pool: the ready ones that
// topology admits, or else those that still serve while they terminate.
// Topology never narrows the local pool (S-119).
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
}

// usable reports whether an endpoint takes traffic at all when nothing better
// is there.
func usable(e *cluster.Endpoint) bool { return e.Ready || e.Serving && e.Terminating }

// topology says which hints count.
type topology uint8

const (
	noTopology topology = iota
	sameNode
	sameZone
)

// topologyOf looks at the ready candidates: hints count when all have them and
// one is for us, node hints before zone hints.
func topologyOf(candidates []Choice, v *view) topology {
	nodes, zones := true, true
	ourNode, ourZone := false, false
	for i := range candidates {
		e := candidates[i].Endpoint
		if !e.Ready {
			continue
		}
		forNodes, forZones := nodeHints(e), zoneHints(e)
		nodes = nodes && len(forNodes) > 0
		zones = zones && len(forZones) > 0
		ourNode = ourNode || v.node != "" && slices.Contains(forNodes, v.node)
		ourZone = ourZone || v.zone != "" && slices.Contains(forZones, v.zone)
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
	case t == sameNode && !slices.Contains(nodeHints(e), v.node):
		return OtherNode
	case t == sameZone && !slices.Contains(zoneHints(e), v.zone):
		return OtherZone
	}
	return Chosen
}
