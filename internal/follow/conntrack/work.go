package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	kernel "github.com/sluice-proxy/sluice/internal/kernel/conntrack"
)

// maxListings is how many filtered listings are cheaper than reading every flow
// of a protocol. The kernel walks its whole table for each; what a filter saves
// is the copying, which is about ten times the walk.
const maxListings = 8

// need says what may be wrong with the flows to a front.
type need struct {
	all  bool             // any flow may be stale
	gone []netip.AddrPort // otherwise only those that go to one of these

	// When a second look is due; zero for the first.
	second time.Time
}

// work is what has to be looked for.
type work map[key]need

// none reports that there is nothing to look for.
func (n need) none() bool { return !n.all && len(n.gone) == 0 }

// merge returns what serves both needs. A first look is not put off to the time
// of a second one.
func (n need) merge(o need) need {
	if n.none() {
		return o
	}
	if o.none() {
		return n
	}
	m := need{all: n.all || o.all, gone: slices.Clone(n.gone)}
	for _, b := range o.gone {
		if !slices.Contains(m.gone, b) {
			m.gone = append(m.gone, b)
		}
	}
	if !n.second.IsZero() && !o.second.IsZero() {
		m.second = o.second
		if n.second.After(o.second) {
			m.second = n.second
		}
	}
	return m
}

// add puts a need to those that are there.
func (w work) add(k key, n need) {
	if n = w[k].merge(n); !n.none() {
		w[k] = n
	}
}

// with returns what is in either, and may keep other for it: all of a large
// cluster is work once, and is not to be there twice.
func (w work) with(other work) work {
	if len(w) == 0 {
		return other
	}
	for k, n := range other {
		w.add(k, n)
	}
	return w
}

// compare returns what may be wrong with the flows to a front that changed; the
// zero front is none. A front that only gained backends, and had some, has no
// wrong flows: it costs nothing.
func compare(old, now front) need {
	if len(old.serving) == 0 {
		// Flows may have been made while nobody translated them, also by an
		// earlier run or another proxy.
		became := now.owner != old.owner || len(now.serving) > 0
		return need{all: now.exists() && became}
	}
	var gone []netip.AddrPort
	for _, b := range old.serving {
		if _, ok := slices.BinarySearchFunc(now.serving, b, netip.AddrPort.Compare); !ok {
			gone = append(gone, b)
		}
	}
	return need{gone: gone}
}

// listings returns the listings that show every flow w asks for.
func (w work) listings() []kernel.Filter {
	var all []kernel.Filter
	for _, protocol := range []uint8{kernel.TCP, kernel.UDP, kernel.SCTP} {
		all = append(all, w.listingsOf(protocol)...)
	}
	return all
}

// listingsOf is listings for one protocol: one for each front or each backend that
// is gone, whichever are fewer; or one of all flows, when that is less work.
func (w work) listingsOf(protocol uint8) []kernel.Filter {
	var fronts, few []kernel.Filter
	backends, all := map[kernel.Filter]struct{}{}, map[kernel.Filter]struct{}{}
	for k, n := range w {
		if k.protocol != protocol {
			continue
		}
		f := filter(k)
		all[f] = struct{}{}
		f.OrigDst = netip.AddrPortFrom(k.addr, k.port)
		switch {
		case len(fronts) > maxListings: // there are too many already
			continue
		case n.all:
			fronts = append(fronts, f)
			continue
		}
		few = append(few, f)
		for _, b := range n.gone {
			f := filter(k)
			f.ReplySrc = b
			backends[f] = struct{}{}
		}
	}
	if len(backends) < len(few) {
		few = keys(backends)
	}
	if len(fronts)+len(few) <= maxListings {
		return append(fronts, few...)
	}
	return keys(all)
}

// filter lets through all flows that a look for a key may end.
func filter(k key) kernel.Filter {
	return kernel.Filter{Family: kernel.Family(k.family), Protocol: k.protocol, Unanswered: k.protocol != kernel.UDP}
}

func keys[K comparable](m map[K]struct{}) []K {
	return slices.Collect(maps.Keys(m))
}
