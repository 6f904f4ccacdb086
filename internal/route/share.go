package route

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// setShares sets the shares of candidates for a TCP port.
func setShares(candidates []Choice, port string, shares cluster.Shares) {
	if len(shares) == 0 {
		return
	}
	for i := range candidates {
		c := &candidates[i]
		if s, has := shares[cluster.ShareKey{Port: port, Backend: c.Backend}]; has {
			c.Share = &s
		}
	}
}

func (c *Choice) ejected() bool { return c.Share != nil && c.Share.Part == 0 }

// leaveOutEjected leaves ejected backends out of a pool, unless it has no others.
func leaveOutEjected(candidates []Choice) {
	if !slices.ContainsFunc(candidates, func(c Choice) bool { return c.Reason == Chosen && !c.ejected() }) {
		return
	}
	for i := range candidates {
		if c := &candidates[i]; c.Reason == Chosen && c.ejected() {
			c.Reason = Ejected
		}
	}
}

// ejected adds the backends that are left out of a pool to a sorted list.
func ejected(list []netip.AddrPort, candidates []Choice) []netip.AddrPort {
	for i := range candidates {
		if c := &candidates[i]; c.Reason == Ejected && !slices.Contains(list, c.Backend) {
			list = append(list, c.Backend)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// manyBackends is from how many backends on each gets its share at once: a slot of one is a small part anyway, and a
// sixteenth of it would need many, which are written twice for each trial.
const manyBackends = 64

// shared returns the weights of a port with those of backends that get a part of their share. Parts do not count with
// session affinity, as weights do not. Where a hash of the client chooses, each part moves a part of the clients back.
func shared(p *Port, weights map[netip.AddrPort]uint16, candidates []Choice) map[netip.AddrPort]uint16 {
	partial := func(c Choice) bool { return c.Share != nil && c.Share.Part > 0 && c.Share.Part < cluster.Whole }
	many := len(candidates) >= manyBackends && !p.ByClient()
	if p.Affinity > 0 || many || !slices.ContainsFunc(candidates, partial) {
		return weights
	}
	before := Port{Weights: weights}
	most := 1
	for _, w := range weights {
		most = max(most, int(w))
	}
	unit := max(1, min(cluster.Whole, math.MaxUint16/most)) // of large weights, which are exact enough
	out := make(map[netip.AddrPort]uint16, len(candidates))
	for _, c := range candidates {
		w, part := int(before.Weight(c.Backend)), cluster.Whole
		if c.Share != nil && c.Share.Part > 0 {
			part = int(c.Share.Part)
		}
		if scaled := w * unit * part / cluster.Whole; w > 0 {
			w = max(1, scaled)
		}
		out[c.Backend] = uint16(w)
	}
	maps.DeleteFunc(out, func(_ netip.AddrPort, w uint16) bool { return w == 1 })
	return out
}
