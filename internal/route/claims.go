package route

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// claims record which Service owns which address, port and protocol. If several
// Services ask for one claim, a Service whose ClusterIP it is wins, so that no
// externalIP can take over a ClusterIP; then the oldest wins, then the first by
// name. The owner does not depend on the order in which the Services asked.
type claims struct {
	owner    map[claim]*cluster.Service
	contests map[claim]*contest // only of claims that several Services ask for

	families []Family
	room     []candidate
}

func newClaims(families []Family) *claims {
	return &claims{
		owner:    map[claim]*cluster.Service{},
		contests: map[claim]*contest{},
		families: families,
	}
}

// replace withdraws the claims of one version of a Service and makes those of
// the next; nil: there is none. It returns the names of the other Services that
// won or lost a claim by it. Services that lose to another owner than before are
// not among them: their routes stay the same, and there may be very many.
func (c *claims) replace(before, after *cluster.Service) []cluster.Name {
	var moved []cluster.Name
	note := func(svc *cluster.Service) {
		if svc != nil && (len(moved) == 0 || moved[len(moved)-1] != svc.Name) {
			moved = append(moved, svc.Name)
		}
	}
	for _, k := range c.wanted(before) {
		note(c.release(k.claim, before))
	}
	for _, k := range c.wanted(after) {
		note(c.take(k.claim, after))
	}
	return moved
}

// wanted returns what a Service asks for, without its own repetitions.
func (c *claims) wanted(svc *cluster.Service) []candidate {
	if svc == nil {
		return nil
	}
	c.room = appendCandidates(reuse(c.room), svc, c.families)
	c.room = appendHealthPorts(c.room, svc, c.families)
	return slices.DeleteFunc(c.room, func(k candidate) bool { return k.twin != k.port })
}

// take makes a claim of a Service. It returns the Service that lost it by that;
// nil: none.
func (c *claims) take(k claim, svc *cluster.Service) *cluster.Service {
	owner := c.owner[k]
	if owner == nil {
		c.owner[k] = svc
		return nil
	}
	contest := c.contests[k]
	if contest == nil {
		contest = newContest(k, owner)
		c.contests[k] = contest
	}
	contest.add(svc)
	if contest.owner() == owner {
		return nil
	}
	c.owner[k] = svc
	return owner
}

// release withdraws a claim of a Service. It returns the Service that won it by
// that; nil: none.
func (c *claims) release(k claim, svc *cluster.Service) *cluster.Service {
	contest := c.contests[k]
	if contest == nil {
		delete(c.owner, k)
		return nil
	}
	contest.remove(svc)
	next := contest.owner()
	if contest.Len() == 1 {
		delete(c.contests, k)
	}
	if c.owner[k] == next {
		return nil
	}
	c.owner[k] = next
	return next
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
