package nft

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// convert calls send, which encodes its elements at once, with all elements of an operation,
// as many at a time as fit into a message.
func (o op) convert(send func(*nftables.Set, []nftables.SetElement) error) error {
	for list := o.elements; len(list) > 0; {
		n := fitting(list)
		var elements []nftables.SetElement
		for _, e := range list[:n] {
			elements = append(elements, e.elements(o.set)...)
		}
		if err := send(o.set.set(o.table), elements); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// elements converts an element to one or two of the library.
func (e Element) elements(s Set) []nftables.SetElement {
	ne := nftables.SetElement{Key: []byte(e.Key), Comment: e.Comment}
	switch {
	case s.Verdicts():
		ne.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.Goto}
	case s.Data != nil:
		ne.Val = []byte(e.Data)
	}
	if e.End != "" && len(s.Key) > 1 {
		ne.KeyEnd = []byte(e.End)
	}
	if e.End != "" && len(s.Key) == 1 {
		return []nftables.SetElement{ne, {Key: []byte(e.End), IntervalEnd: true}}
	}
	return []nftables.SetElement{ne}
}
