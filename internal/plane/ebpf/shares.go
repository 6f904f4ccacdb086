package ebpf

import (
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// shares implements Shares of plane.Opened, and, without a kernel, that of plane.Facts: for connections that are
// decided at sockets. Others follow from the facts of the packet plane.
func (b *balancing) shares(by plane.Connection) plane.Shares {
	p, pool := decidedBy(by)
	switch {
	case pool != nil:
	case b.packets == nil:
		return plane.Shares{}
	default:
		return b.packets(by)
	}
	c := choice{pool: pool.id, slots: p.table(pool), parts: b.partsOf(p.Port)}
	switch p.scheduler {
	case bpf.ByHash:
		return plane.Shares{Of: c.byHash(by), How: "to the one that a hash of the client chooses"}
	case bpf.ByLoad:
		return plane.Shares{Of: b.byLoad(&c, p.Port), How: "to the one with the fewest open connections for its weight"}
	case bpf.ByChance:
	}
	switch slowStart := c.slowStart(); {
	case slowStart && len(p.Weights) > 0:
		return plane.Shares{Of: c.byChance(), How: "by their weights; backends in slow start get less"}
	case slowStart:
		return plane.Shares{Of: c.byChance(), How: "with the same chance, except that backends in slow start get less"}
	case len(p.Weights) > 0:
		return plane.Shares{Of: c.byChance(), How: "by their weights"}
	}
	return plane.Shares{}
}

// partsOf returns the parts that new backends get of their share. Without a kernel, or if it cannot be read, none is
// new.
func (b *balancing) partsOf(p *route.Port) map[bpf.Member]uint32 {
	if b.parts == nil || p.SlowStart == 0 {
		return nil
	}
	parts, err := b.parts()
	if err != nil {
		return nil
	}
	return parts
}

// byLoad returns the probabilities of backends with their loads. If the loads are not known, the probabilities follow
// the weights, as they do when connections stay open.
func (b *balancing) byLoad(c *choice, p *route.Port) map[netip.AddrPort]float64 {
	if b.loads != nil {
		if loads, err := b.loads(); err == nil {
			return c.byLoad(loads, p.Weight)
		}
	}
	c.slots = slots.Weighted(c.slots, p.Weight)
	return c.byChance()
}

// choice is how programs choose a backend of a pool: functions of sock.c, as probabilities.
type choice struct {
	pool  bpf.Pool
	slots []netip.AddrPort
	parts map[bpf.Member]uint32 // of new backends
}

// part returns which part of its share a backend gets, in 256ths.
func (c *choice) part(at netip.AddrPort) uint32 {
	if part, is := c.parts[bpf.Member{Pool: c.pool, Backend: at}]; is {
		return part
	}
	return bpf.FullPart
}

// slowStart reports whether some backends get a part of their share.
func (c *choice) slowStart() bool {
	return slices.ContainsFunc(c.slots, func(at netip.AddrPort) bool { return c.part(at) < bpf.FullPart })
}

// byChance returns the probabilities of a draw. A new backend passes a part of its connections on to the next one,
// but not at the last.
func (c *choice) byChance() map[netip.AddrPort]float64 {
	each := 1 / float64(len(c.slots))
	kept := func(at netip.AddrPort) float64 { return float64(c.part(at)) / bpf.FullPart }
	again := 0.0 // the probability that a draw is passed on
	for _, at := range c.slots {
		again += each * (1 - kept(at))
	}
	draws, last := 0.0, 1.0 // how many draws there are on average, and the probability of the last one
	for i := range bpf.Draws {
		last = math.Pow(again, float64(i))
		draws += last
	}
	shares := map[netip.AddrPort]float64{}
	for _, at := range c.slots {
		shares[at] += each * (kept(at)*draws + (1-kept(at))*last)
	}
	return shares
}

// byHash returns the backend of a client. If its address is not known, the probabilities are the shares of
// the table.
func (c *choice) byHash(by plane.Connection) map[netip.AddrPort]float64 {
	if !by.Client.IsValid() {
		return c.byChance()
	}
	hash, at := slots.HashClient(by.Client), netip.AddrPort{}
	for range bpf.Draws {
		at = c.slots[slots.Scale(hash, len(c.slots))]
		if hash&0xff < c.part(at) {
			break
		}
		hash = bpf.Rehash(hash)
	}
	return map[netip.AddrPort]float64{at: 1}
}

// byLoad returns the probabilities of the backends that are the first with the lowest load, wherever the
// programs begin. Where the load of a backend is unknown, they choose the one with which they begin.
func (c *choice) byLoad(
	known map[netip.AddrPort]bpf.Load, weight func(netip.AddrPort) uint16,
) map[netip.AddrPort]float64 {
	loads := make([]uint64, len(c.slots))
	for i, at := range c.slots {
		connections := uint64(known[at].Counted) + uint64(known[at].Since) + 1
		loads[i] = connections << 24 / (uint64(weight(at)) * uint64(c.part(at)))
	}
	shares := map[netip.AddrPort]float64{}
	for first := range c.slots {
		best := first
		for i := range min(bpf.Compared, len(c.slots)) {
			at := (first + i) % len(c.slots)
			if _, is := known[c.slots[at]]; !is {
				best = first
				break
			}
			if loads[at] < loads[best] {
				best = at
			}
		}
		shares[c.slots[best]] += 1 / float64(len(c.slots))
	}
	return shares
}
