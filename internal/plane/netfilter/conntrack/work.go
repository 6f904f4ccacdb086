package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	kernel "github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

// maxListings is how many filtered listings are cheaper than reading every flow of a protocol. The kernel walks its
// whole table for each; what a filter saves is the copying, which is about ten times the walk.
const maxListings = 8

// need describes the flows to a frontend that may be stale.
type need struct {
	all  bool             // any flow may be stale
	gone []netip.AddrPort // otherwise only those to one of these; sorted

	// When a second scan is due; zero for the first.
	second time.Time
}

// flows are the frontends to scan for.
type flows map[key]need

// none reports whether there is no work.
func (n need) none() bool { return !n.all && len(n.gone) == 0 }

// merge returns a need that covers both. It does not delay a first scan to the time of a second one.
func (n need) merge(o need) need {
	if n.none() {
		return o
	}
	if o.none() {
		return n
	}
	m := need{all: n.all || o.all, gone: union(n.gone, o.gone)}
	if !n.second.IsZero() && !o.second.IsZero() {
		m.second = o.second
		if n.second.After(o.second) {
			m.second = n.second
		}
	}
	return m
}

// union returns what is in either of two sorted lists, sorted.
func union(a, b []netip.AddrPort) []netip.AddrPort {
	switch {
	case len(b) == 0 || identical(a, b):
		return a
	case len(a) == 0:
		return b
	}
	list := slices.Concat(a, b)
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// identical reports whether two lists are the same memory.
func identical(a, b []netip.AddrPort) bool { return listOf(a) == listOf(b) }

// list identifies a list that does not change.
type list struct {
	first  *netip.AddrPort
	length int
}

func listOf(l []netip.AddrPort) list {
	if len(l) == 0 {
		return list{}
	}
	return list{&l[0], len(l)}
}

// add merges a need with that of the same key.
func (w flows) add(k key, n need) {
	if n = w[k].merge(n); !n.none() {
		w[k] = n
	}
}

// with returns the union, and may use the memory of other: the work for all of a large
// cluster must not be in memory twice.
func (w flows) with(other flows) flows {
	if len(w) == 0 {
		return other
	}
	for k, n := range other {
		w.add(k, n)
	}
	return w
}

// comparison compares frontends. Those of one port have the same backends, so it remembers which of two lists are gone.
type comparison map[[2]list][]netip.AddrPort

// frontends returns the need of a frontend that changed; the zero frontend is none. A frontend
// that had backends and only gained more has no stale flows, and costs nothing.
func (c comparison) frontends(old, now frontend) need {
	if len(old.serving) == 0 {
		// Flows may have been made without rules for them, also before the start, or by another proxy.
		became := now.owner != old.owner || len(now.serving) > 0
		return need{all: now.exists() && became}
	}
	key := [2]list{listOf(old.serving), listOf(now.serving)}
	gone, known := c[key]
	if known {
		return need{gone: gone}
	}
	for _, b := range old.serving {
		if !contains(now.serving, b) {
			gone = append(gone, b)
		}
	}
	c[key] = gone
	return need{gone: gone}
}

// listings returns the listings that show every flow w asks for.
func (w flows) listings() []kernel.Filter {
	var all []kernel.Filter
	for _, protocol := range []uint8{kernel.TCP, kernel.UDP, kernel.SCTP} {
		all = append(all, w.listingsOf(protocol)...)
	}
	return all
}

// listingsOf is listings for one protocol: one for each frontend or each backend that
// is gone, whichever are fewer; or one of all flows, when that is less work.
func (w flows) listingsOf(protocol uint8) []kernel.Filter {
	var frontends, few []kernel.Filter
	backends, all := map[kernel.Filter]struct{}{}, map[kernel.Filter]struct{}{}
	for k, n := range w {
		if k.protocol != protocol {
			continue
		}
		f := filter(k)
		all[f] = struct{}{}
		f.OrigDst = netip.AddrPortFrom(k.addr, k.port)
		switch {
		case len(frontends) > maxListings, min(len(few), len(backends)) > maxListings: // there are too many already
			continue
		case n.all:
			frontends = append(frontends, f)
			continue
		}
		few = append(few, f)
		for _, b := range n.gone {
			if len(backends) > maxListings {
				break
			}
			f := filter(k)
			f.ReplySrc = b
			backends[f] = struct{}{}
		}
	}
	if len(backends) < len(few) {
		few = keys(backends)
	}
	if len(frontends)+len(few) <= maxListings {
		return append(frontends, few...)
	}
	return keys(all)
}

// filter matches all flows that a scan for a key may end.
func filter(k key) kernel.Filter {
	return kernel.Filter{Family: kernel.Family(k.family), Protocol: k.protocol, Unanswered: k.protocol != kernel.UDP}
}

func keys[K comparable](m map[K]struct{}) []K {
	return slices.Collect(maps.Keys(m))
}
