package nftables

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// key names an entry of one of the tables: the table itself, a set, a chain, an
// element of a set, or all ranges that a set holds for one frontend.
type key struct {
	ip   route.Family
	of   object
	name string // of a set or a chain; of an element its key, with the end of its range
}

// The value of an entry is a string:
//
//   - of a table, how it was found: see unfit and dormant;
//   - of a chain, its rules, one per line;
//   - of ranges, their elements, see encode;
//   - of any other element, its data or the chain it leads to, and its comment.
type (
	entry = ledger.Entry[key, string]
	step  = ledger.Step[key, string]
)

// object is the kind of an entry. The numbers from firstElement on are those of elements,
// in the order of layout.sets.
type object uint8

const (
	tableObject object = iota
	setObject
	chainObject // a chain that is there whatever Services there are
	actionChain // a chain for an action of frontends

	firstElement
)

// The numbers of elements. Those from spaceElement on are repeated for each space.
const (
	actionElement      = firstElement + iota // at the first level; the other levels follow
	_                                        // after the guard
	_                                        // after the split
	clusterIPElement                         //
	serviceCIDRElement                       //
	nodeIPElement                            //
	podRanges                                // all ranges of pods: one entry
	hairpinElement                           //
	_                                        // clients: rules add them
	spaceElement
)

// The numbers of elements of a space, beginning at spaceElement.
const (
	backendElement object = iota
	outsideBackendElement
	affinityElement
	allowedRanges // all ranges of a frontend: one entry
	guardedElement
	insideElement
	outsideElement
	frontendElement
	perSpace
)

// in returns the number of an element of a space.
func (o object) in(space int) object { return spaceElement + o + object(space)*perSpace }

// ofSpace is the reverse of in: backendElement to frontendElement, or perSpace if the
// entry is no element of a space.
func (o object) ofSpace() object {
	if o < spaceElement {
		return perSpace
	}
	return (o - spaceElement) % perSpace
}

// ranged reports whether an entry is a list of ranges.
func (o object) ranged() bool { return o == podRanges || o.ofSpace() == allowedRanges }

// The phases, in the order in which steps are written.
const (
	prepared       ledger.Phase = iota + 1 // tables and sets
	rangesAdded                            // ranges of clients and pods, before rules use them
	chainsAdded                            //
	targetsAdded                           // elements before others lead to them
	refusalsGone                           // addresses refused except at their frontends, while those are there
	switched                               // frontends, and elements that change in place
	refusalsAdded                          // the same addresses, once their frontends are there
	targetsGone                            // elements and rules that nothing leads to any more
	setsGone                               // before chains: their elements may lead to those
	chainsGone                             //
	afterLastPhase                         //
)

func ledgerLayout() ledger.Layout[key] {
	return ledger.Layout[key]{Kind: key.kind, Order: key.compare}
}

// kind says when an entry is written. What a frontend leads to, actions and all that is
// under its key, is there before it and as long as it is. What refuses an address except
// at its frontends comes after them and goes before them: until all are there, another
// proxy may serve it, whose rules come next.
func (k key) kind() ledger.Kind {
	switch of := k.of; {
	case of == tableObject:
		return ledger.Kind{Add: prepared, Change: prepared, Remove: chainsGone}
	case of == setObject:
		return ledger.Kind{Add: prepared, Change: prepared, Remove: setsGone, Target: true}
	case of < firstElement:
		return ledger.Kind{Add: chainsAdded, Change: chainsAdded, Empty: targetsGone, Remove: chainsGone, Target: true, Shared: of == actionChain}
	case of == clusterIPElement || of == serviceCIDRElement:
		return ledger.Kind{Add: refusalsAdded, Change: refusalsAdded, Remove: refusalsGone, Shared: true}
	case of == nodeIPElement:
		return ledger.Kind{Add: switched, Change: switched, Remove: switched}
	}
	kind := ledger.Kind{Add: targetsAdded, Change: switched, Remove: targetsGone, Target: true}
	switch {
	case k.of.ranged():
		kind.Add, kind.Early = rangesAdded, true
	case k.of < spaceElement:
		kind.Shared = true
	case k.of.ofSpace() == frontendElement:
		kind = ledger.Kind{Add: switched, Change: switched, Remove: switched}
	default:
		kind.Early = true
	}
	return kind
}

// compare sorts chains so that none leads to a later one: those that lead further have
// names further on.
func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.ip, o.ip), cmp.Compare(k.of, o.of), strings.Compare(k.name, o.name))
}

// objectBytes is about what a table, a set, a chain or a rule takes in a transaction.
const objectBytes = 1024

// size estimates how many bytes a step takes in a transaction.
func size(s step) int {
	switch {
	case s.Key.of.ranged():
		return rangesSize(s.Old) + rangesSize(s.New)
	case s.Key.of >= firstElement:
		n := 0
		if s.Op != ledger.Add {
			n += nft.Element{}.Bytes() + len(s.Key.name) + len(s.Old)
		}
		if s.Op != ledger.Remove {
			n += nft.Element{}.Bytes() + len(s.Key.name) + len(s.New)
		}
		return n
	case s.Op == ledger.Add || s.Op == ledger.Change:
		return objectBytes * (2 + strings.Count(s.New, "\n"))
	}
	return objectBytes
}

func rangesSize(value string) int {
	n := 0
	for _, e := range decode(value) {
		n += e.Bytes()
	}
	return n
}

// encode renders ranges as a value, in the order of their keys.
func encode(elements []nft.Element) string {
	slices.SortFunc(elements, func(a, b nft.Element) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.End, b.End))
	})
	var b strings.Builder
	for _, e := range elements {
		for _, part := range []string{e.Key, e.End, e.Comment} {
			b.WriteByte(byte(len(part)))
			b.WriteString(part)
		}
	}
	return b.String()
}

// decode is the reverse of encode.
func decode(value string) []nft.Element {
	var list []nft.Element
	next := func() string {
		n := 1 + int(value[0])
		part := value[1:n]
		value = value[n:]
		return part
	}
	for value != "" {
		e := nft.Element{Key: next()}
		e.End, e.Comment = next(), next()
		list = append(list, e)
	}
	return list
}

// value renders the data, or the chain, and the comment of an element.
func value(e nft.Element) string {
	v := e.Data + e.Goto
	if e.Comment != "" {
		v += "\x00" + e.Comment
	}
	return v
}

// element is the reverse of value, for an entry that is an element.
func (l *layout) element(k key, v string) nft.Element {
	e := nft.Element{Key: k.name}
	set := l.set(k.of)
	if set.Interval {
		e.Key, e.End = k.name[:addrLen(k.ip)], k.name[addrLen(k.ip):]
	}
	switch {
	case set.Data == nil:
		e.Comment = strings.TrimPrefix(v, "\x00")
	case set.Data[0] == nft.Verdict:
		e.Goto, e.Comment, _ = strings.Cut(v, "\x00")
	default:
		n := 4
		if set.Data[0] == nft.Addr {
			n += addrLen(k.ip)
		}
		n = min(n, len(v))
		e.Data, e.Comment = v[:n], strings.TrimPrefix(v[n:], "\x00")
	}
	return e
}

func addrLen(ip route.Family) int {
	if ip == route.IPv4 {
		return 4
	}
	return 16
}
