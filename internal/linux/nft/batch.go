package nft

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// perMessage is how many bytes of elements one message has; a netlink attribute holds at most 65,535.
const perMessage = 48 << 10

// onlyElements reports whether the transaction changes nothing but elements of sets, as nearly all do.
func (t *Tx) onlyElements() bool {
	for kind, ops := range t.ops {
		if len(ops) > 0 && opKind(kind) != deleteElements && opKind(kind) != addElements {
			return false
		}
	}
	return true
}

// commitElements executes a transaction of elements. It encodes them into memory that it
// uses again: the library takes several allocations for each.
func (c *Conn) commitElements(tx *Tx) error {
	x := c.x
	x.beginBatch()
	for _, o := range tx.ops[deleteElements] {
		x.elements(o, unix.NFT_MSG_DELSETELEM, 0, keyOnly)
	}
	for _, o := range tx.ops[addElements] {
		x.elements(o, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, whole)
	}
	return x.doBatch()
}

// beginBatch begins a transaction.
func (x *exchange) beginBatch() {
	x.number++
	x.request = x.request[:0]
	x.mark(unix.NFNL_MSG_BATCH_BEGIN)
}

// doBatch executes the transaction. Only its last message requests an answer: the kernel sends it
// after it has executed them all, and refusals before.
func (x *exchange) doBatch() error {
	x.acknowledge()
	x.mark(unix.NFNL_MSG_BATCH_END)
	return x.do(nothing)
}

// mark appends the message that begins or ends a transaction.
func (x *exchange) mark(kind uint16) {
	x.message(kind, 0, [nfgenHeader]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES})
}

// elements appends the messages for elements of one set.
func (x *exchange) elements(o op, message, flags uint16, encode func([]byte, Set, Element) []byte) {
	for list := o.elements; len(list) > 0; {
		n := fitting(list)
		x.about(o.table, message, flags)
		x.text(unix.NFTA_SET_ELEM_LIST_SET, o.set.Name)
		x.request = nl.AppendNested(x.request, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(to []byte) []byte {
			for _, e := range list[:n] {
				to = encode(to, o.set, e)
			}
			return to
		})
		list = list[n:]
	}
}

// fitting returns how many of the elements fit into one message, at least 1.
func fitting(list []Element) int {
	bytes := 0
	for n, e := range list {
		if bytes += e.Bytes(); bytes > perMessage && n > 0 {
			return n
		}
	}
	return len(list)
}

// keyOnly appends an element without what its deletion does not need.
func keyOnly(to []byte, s Set, e Element) []byte {
	return whole(to, Set{Key: s.Key, Interval: s.Interval}, Element{Key: e.Key, End: e.End})
}

// whole appends an element. One without a key is for all other keys. A range of a plain interval set is two elements.
func whole(to []byte, s Set, e Element) []byte {
	ends := e.End != "" && len(s.Key) == 1
	to = nl.AppendNested(to, unix.NFTA_LIST_ELEM, func(to []byte) []byte {
		if e.Key == "" {
			to = appendCatchall(to)
		} else {
			to = appendValue(to, unix.NFTA_SET_ELEM_KEY, e.Key)
		}
		if e.End != "" && !ends {
			to = appendValue(to, elementKeyEnd, e.End)
		}
		switch {
		case s.Verdicts():
			to = appendGoto(to, e.Goto)
		case s.Data != nil:
			to = appendValue(to, unix.NFTA_SET_ELEM_DATA, e.Data)
		}
		if e.Comment != "" {
			to = nl.Append(to, unix.NFTA_SET_ELEM_USERDATA,
				string(userdata.AppendString(nil, userdata.NFTNL_UDATA_SET_ELEM_COMMENT, e.Comment)))
		}
		return to
	})
	if !ends {
		return to
	}
	return nl.AppendNested(to, unix.NFTA_LIST_ELEM, func(to []byte) []byte {
		to = nl.Append(to, unix.NFTA_SET_ELEM_FLAGS, "\x00\x00\x00\x01") // NFT_SET_ELEM_INTERVAL_END
		return appendValue(to, unix.NFTA_SET_ELEM_KEY, e.End)
	})
}

func appendCatchall(to []byte) []byte {
	return nl.Append(to, unix.NFTA_SET_ELEM_FLAGS, "\x00\x00\x00\x02") // NFT_SET_ELEM_CATCHALL
}

func appendValue(to []byte, typ uint16, value string) []byte {
	return nl.AppendNested(to, typ, func(to []byte) []byte { return nl.Append(to, unix.NFTA_DATA_VALUE, value) })
}

func appendGoto(to []byte, chain string) []byte {
	verdict := expr.VerdictGoto
	return nl.AppendNested(to, unix.NFTA_SET_ELEM_DATA, func(to []byte) []byte {
		return nl.AppendNested(to, unix.NFTA_DATA_VERDICT, func(to []byte) []byte {
			to = nl.Append(to, unix.NFTA_VERDICT_CODE, string(binary.BigEndian.AppendUint32(nil, uint32(verdict))))
			return nl.AppendString(to, unix.NFTA_VERDICT_CHAIN, chain)
		})
	})
}
