package route

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// claims know which Service has which address, port and protocol. Of those that
// ask the one whose ClusterIP it is gets it, so that nobody can take a ClusterIP
// by an externalIP; then the oldest, then the first by name. Who has it depends on who asks
// only, not on the order of asking.
type claims struct {
	owner map[claim]*cluster.Service

	// asking are all that ask, the owner first; only where there are several.
	asking map[claim][]*cluster.Service

	families []Family
	room     []candidate
}

func newClaims(families []Family) *claims {
	return &claims{
		owner:    map[claim]*cluster.Service{},
		asking:   map[claim][]*cluster.Service{},
		families: families,
	}
}

// replace takes away what one version of a Service asked for and gives what
// the next asks for; nil: there is none. It returns the names of Services that
// won, lost or lost to another by it, the replaced one perhaps among them.
func (c *claims) replace(before, after *cluster.Service) []cluster.Name {
	var moved []cluster.Name
	for _, k := range c.wanted(before) {
		moved = append(moved, c.release(k, before)...)
	}
	for _, k := range c.wanted(after) {
		moved = append(moved, c.take(k, after)...)
	}
	return moved
}

// wanted returns what a Service asks for, without its own repetitions.
func (c *claims) wanted(svc *cluster.Service) []candidate {
	if svc == nil {
		return nil
	}
	c.room = appendCandidates(c.room[:0], svc, c.families)
	return slices.DeleteFunc(c.room, func(k candidate) bool { return k.twin != k.port })
}

func (c *claims) take(k candidate, svc *cluster.Service) []cluster.Name {
	owner := c.owner[k.claim]
	if owner == nil {
		c.owner[k.claim] = svc
		return nil
	}
	list := c.asking[k.claim]
	if list == nil {
		list = []*cluster.Service{owner}
	}
	at, _ := slices.BinarySearchFunc(list, svc, k.claim.precedence)
	list = slices.Insert(list, at, svc)
	c.asking[k.claim] = list
	if at > 0 {
		return nil
	}
	c.owner[k.claim] = svc
	return names(list)
}

func (c *claims) release(k candidate, svc *cluster.Service) []cluster.Name {
	list := c.asking[k.claim]
	if list == nil {
		delete(c.owner, k.claim)
		return nil
	}
	list = slices.DeleteFunc(list, func(s *cluster.Service) bool { return s == svc })
	if len(list) > 1 {
		c.asking[k.claim] = list
	} else {
		delete(c.asking, k.claim)
	}
	if c.owner[k.claim] != svc {
		return nil
	}
	c.owner[k.claim] = list[0]
	return names(list)
}

// precedence orders Services that ask for the same.
func (k claim) precedence(a, b *cluster.Service) int {
	addr := netip.AddrFrom16(k.addr).Unmap()
	mine, theirs := slices.Contains(a.ClusterIPs, addr), slices.Contains(b.ClusterIPs, addr)
	switch {
	case mine && !theirs:
		return -1
	case theirs && !mine:
		return 1
	}
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	return a.Name.Compare(b.Name)
}

func names(list []*cluster.Service) []cluster.Name {
	out := make([]cluster.Name, len(list))
	for i, s := range list {
		out[i] = s.Name
	}
	return out
}
