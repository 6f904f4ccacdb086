package nftables

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// key names an entry: a table, a set, a chain, an element of a set, or all ranges of a set for one frontend.
type key struct {
	ip   route.Family
	of   object
	name string // of a set or a chain; of an element its key, with the end of its range
}

// value is the value of an entry: of a table, unfit if it is to be replaced; of a chain, its rules, one per line;
// of ranges, their elements (encode); of any other element, its data or the chain it leads to, and its comment.
type value struct{ data, comment string }

type (
	entry = ledger.Entry[key, value]
	step  = ledger.Step[key, value]
)

// The phases, in the order in which steps are written.
const (
	prepared      ledger.Phase = iota + 1 // tables and sets
	rangesAdded                           // ranges of clients and pods, before rules use them
	chainsAdded                           //
	targetsAdded                          // elements before others lead to them
	refusalsGone                          // addresses refused except at their frontends, while those are there
	switched                              // frontends, and elements that change in place
	refusalsAdded                         // the same addresses, once their frontends are there
	targetsGone                           // elements and rules that nothing leads to any more
	setsGone                              // before chains: their elements may lead to those
	chainsGone                            //
)

// kind says when an entry is written. What a frontend leads to is there before it and as long as it is. What
// refuses an address except at its frontends comes after them and goes before them: until all are there,
// another proxy may serve it, whose rules come next.
func (k key) handling() ledger.Handling {
	switch of := k.of; {
	case of == tableObject:
		return ledger.Handling{Add: prepared, Change: prepared, Remove: chainsGone}
	case of == setObject:
		return ledger.Handling{Add: prepared, Change: prepared, Remove: setsGone, Target: true}
	case of < firstElement:
		return ledger.Handling{
			Add: chainsAdded, Change: chainsAdded, Empty: targetsGone, Remove: chainsGone, Target: true,
			Shared: of == actionChain,
		}
	case of == clusterIPElement || of == serviceCIDRElement:
		return ledger.Handling{Add: refusalsAdded, Change: refusalsAdded, Remove: refusalsGone, Shared: true}
	case of == nodeIPElement || of == frontendElement.in(byAddress) || of == frontendElement.in(byNodePort):
		return ledger.Handling{Add: switched, Change: switched, Remove: switched}
	case of.ranged():
		return ledger.Handling{Add: rangesAdded, Change: switched, Remove: targetsGone, Target: true, Early: true}
	}
	shared := k.of <= hairpinElement
	return ledger.Handling{
		Add: targetsAdded, Change: switched, Remove: targetsGone, Target: true, Shared: shared, Early: !shared,
	}
}

// compare sorts chains so that none leads to a later one, by their names.
func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.ip, o.ip), cmp.Compare(k.of, o.of), strings.Compare(k.name, o.name))
}

// encode renders ranges as a value, in the order of their keys.
func encode(elements []nft.Element) value {
	slices.SortFunc(elements, func(a, b nft.Element) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.End, b.End))
	})
	var b strings.Builder
	for _, e := range elements {
		fmt.Fprintf(&b, "%q %q %q\n", e.Key, e.End, e.Comment)
	}
	return value{data: b.String()}
}

func decode(v value) []nft.Element {
	var list []nft.Element
	for line := range strings.Lines(v.data) {
		e := nft.Element{}
		_, _ = fmt.Sscanf(line, "%q %q %q", &e.Key, &e.End, &e.Comment) // as encode writes it
		list = append(list, e)
	}
	return list
}

// valueOf returns the value of an element: it has data, or a chain it leads to, or neither.
func valueOf(e nft.Element) value { return value{e.Data + e.Goto, e.Comment} }

func element(of nft.Set, k key, v value) nft.Element {
	e := nft.Element{Key: k.name, Data: v.data, Comment: v.comment}
	if of.Interval {
		n := tableFor(k.ip).Family.AddrLen()
		e.Key, e.End = k.name[:n], k.name[n:]
	}
	if of.Verdicts() {
		e.Data, e.Goto = "", v.data
	}
	return e
}
