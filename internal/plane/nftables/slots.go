package nftables

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// A port whose Service has weights, or a scheduler that chooses by the client, has slots in place of backends: the
// same rows and chains, of which more than one may have the same backend. The order of slots follows from the backends
// alone, except with least connections (least.go). Session affinity comes before all: of weights only 0 counts then.

// hashes reports whether a hash of the client's address chooses the slot.
func hashes(p *route.Port) bool { return p.ByClient() }

// slotted reports whether a port has slots.
func slotted(p *route.Port) bool {
	return p.Affinity == 0 && (len(p.Weights) > 0 || hashes(p) || least(p))
}

// weighted returns the backends of a pool that get new connections.
func weighted(p *route.Port, pool route.Pool) []netip.AddrPort {
	all := p.Backends(pool)
	if len(p.Weights) == 0 {
		return all
	}
	var list []netip.AddrPort
	for _, b := range all {
		if p.Weight(b) > 0 {
			list = append(list, b)
		}
	}
	return list
}

// slotsOf returns the backend of each slot of a pool.
func slotsOf(p *route.Port, pool route.Pool) []netip.AddrPort {
	backends := weighted(p, pool)
	switch {
	case len(backends) == 0, !slotted(p):
		return backends
	case hashes(p):
		return slots.Maglev(backends, p.Weight)
	case least(p):
		return slots.Fit(nil, Live{}.loads(p, backends))
	}
	return slots.Weighted(backends, p.Weight)
}

// count returns the number of slots of a pool.
func count(p *route.Port, pool route.Pool) int {
	backends := weighted(p, pool)
	switch {
	case len(backends) == 0, !slotted(p):
		return len(backends)
	case hashes(p):
		return slots.Size(len(backends))
	case least(p):
		return slots.LeastSize(len(backends))
	}
	return slots.Count(backends, p.Weight)
}

// shares returns the shares before connections are counted.
func shares(by plane.Connection) plane.Shares {
	p := &by.Service.Ports[by.Port]
	return sharesOf(p, slotsOf(p, by.Way.Pool), by.Client)
}

// sharesOf returns the backend that a hash of the client's address chooses, the shares of slots with least connections,
// and the shares without weights, which do not count with session affinity. Everything else follows from the weights.
func sharesOf(p *route.Port, table []netip.AddrPort, client netip.Addr) plane.Shares {
	s := plane.Shares{Of: map[netip.AddrPort]float64{}}
	switch {
	case len(table) == 0, !hashes(p) && !least(p) && (p.Affinity == 0 || len(p.Weights) == 0):
		return plane.Shares{}
	case least(p):
		s.How = "more to those with few connections for their weight"
	case !hashes(p):
		s.How = "each with the same chance"
	case client.IsValid():
		s.How = "to the one that a hash of the client chooses"
		s.Of[table[slots.Of(client, len(table))]] = 1
		return s
	default:
		s.How = "by a hash of the client"
	}
	for _, at := range table {
		s.Of[at] += 1 / float64(len(table))
	}
	return s
}
