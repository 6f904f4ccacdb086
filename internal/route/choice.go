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
		list = gatherSlice(list, sl, key)
	}
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
	return list, n
}

func gatherSlice(list []Choice, sl *cluster.Slice, key backendKey) []Choice {
	matched := false
	for _, p := range sl.Ports {
		if p.Name != key.name || p.Protocol != key.protocol || p.Port == 0 {
			continue
		}
		matched = true
		list = appendChoices(list, sl, p.Port, key.family)
	}
	if !matched {
		list = appendChoices(list, sl, 0, key.family)
	}
	return list
}

// appendChoices adds the endpoints of a slice at a port; port 0: it has none.
func appendChoices(list []Choice, sl *cluster.Slice, port uint16, f Family) []Choice {
	for i := range sl.Endpoints {
		e := &sl.Endpoints[i]
		c := Choice{Slice: sl, Endpoint: e, Backend: netip.AddrPortFrom(e.Addr, port)}
		switch {
		case FamilyOf(e.Addr) != f:
			c.Reason = WrongFamily
		case port == 0:
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
