package nft

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// converter converts elements of sets to those of the library, as many at a time as fit
// into a message. Its memory serves all transactions.
type converter struct {
	elements []nftables.SetElement
	bytes    []byte // of keys and data
}

// each calls send, which encodes its elements at once, with all elements of a bucket.
func (v *converter) each(b bucket, send func(*nftables.Set, []nftables.SetElement) error) error {
	if len(b.elements) == 0 {
		return nil
	}
	set := b.set.set(b.table)
	bytes := 0
	v.clear()
	for _, e := range b.elements {
		if bytes += e.Bytes(); bytes > perMessage {
			if err := send(set, v.elements); err != nil {
				return err
			}
			v.clear()
			bytes = e.Bytes()
		}
		v.add(b.set, e)
	}
	return send(set, v.elements)
}

func (v *converter) clear() { v.elements, v.bytes = v.elements[:0], v.bytes[:0] }

// add converts an element to one or two of the library.
func (v *converter) add(s Set, e Element) {
	ne := nftables.SetElement{Key: v.copy(e.Key), Comment: e.Comment}
	switch {
	case s.verdicts():
		ne.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.Goto}
	case s.Data != nil:
		ne.Val = v.copy(e.Data)
	}
	if e.End != "" && len(s.Key) > 1 {
		ne.KeyEnd = v.copy(e.End)
	}
	v.elements = append(v.elements, ne)
	if e.End != "" && len(s.Key) == 1 {
		v.elements = append(v.elements, nftables.SetElement{Key: v.copy(e.End), IntervalEnd: true})
	}
}

func (v *converter) copy(text string) []byte {
	at := len(v.bytes)
	v.bytes = append(v.bytes, text...)
	return v.bytes[at:len(v.bytes):len(v.bytes)]
}
