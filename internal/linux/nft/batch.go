package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// catchall is NFT_SET_ELEM_CATCHALL (nf_tables.h).
const catchall = 2

// perMessage is how many bytes of elements one message has; a netlink attribute holds at most 65,535.
const perMessage = 48 << 10

// transact executes operations, all of them or none. It encodes them into memory that it uses again: the library takes
// several allocations for each element.
func (x *exchange) transact(ops []op) error {
	x.beginBatch()
	for i, o := range ops {
		if err := x.operation(o, uint32(i+1)); err != nil {
			return fmt.Errorf("encode transaction: %w", err)
		}
	}
	return x.doBatch()
}

// operation appends the messages of an operation, which has a number in its transaction.
func (x *exchange) operation(o op, number uint32) error {
	switch o.kind {
	case dropTable:
		x.about(o.table, unix.NFT_MSG_DELTABLE, 0)
	case addTable:
		x.about(o.table, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
		x.uint32(unix.NFTA_TABLE_FLAGS, 0)
	case addSet:
		x.addSet(o, number)
	case addChain:
		x.addChain(o)
	case fillChain, flushChain:
		x.aboutChain(o, unix.NFT_MSG_DELRULE, 0, unix.NFTA_RULE_CHAIN)
		for _, r := range o.chain.Rules {
			if err := x.addRule(o, r); err != nil {
				return err
			}
		}
	case deleteElements:
		x.elements(o, unix.NFT_MSG_DELSETELEM, 0, keyOnly)
	case addElements:
		x.elements(o, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, whole)
	case deleteSet:
		x.about(o.table, unix.NFT_MSG_DELSET, 0)
		x.text(unix.NFTA_SET_NAME, o.set.Name)
	case deleteChain:
		x.aboutChain(o, unix.NFT_MSG_DELCHAIN, 0, unix.NFTA_CHAIN_NAME)
	}
	return nil
}

// aboutChain begins a message about a chain or its rules, whose attribute of a type has the name.
func (x *exchange) aboutChain(o op, message, flags, name uint16) {
	x.about(o.table, message, flags)
	x.text(name, o.chain.Name)
}

func (x *exchange) addSet(o op, number uint32) {
	s := o.set.set(o.table)
	x.about(o.table, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	x.text(unix.NFTA_SET_NAME, s.Name)
	x.uint32(unix.NFTA_SET_ID, number)
	x.uint32(unix.NFTA_SET_FLAGS, o.set.flags())
	x.uint32(unix.NFTA_SET_KEY_TYPE, s.KeyType.GetNFTMagic())
	x.uint32(unix.NFTA_SET_KEY_LEN, s.KeyType.Bytes)
	switch {
	case o.set.Verdicts():
		x.uint32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	case s.IsMap:
		x.uint32(unix.NFTA_SET_DATA_TYPE, s.DataType.GetNFTMagic())
		x.uint32(unix.NFTA_SET_DATA_LEN, s.DataType.Bytes)
	}
	if s.Timeout > 0 {
		x.request = nl.Append(x.request, unix.NFTA_SET_TIMEOUT,
			binary.BigEndian.AppendUint64(nil, uint64(s.Timeout.Milliseconds())))
	}
	x.request = nl.AppendNested(x.request, unix.NFTA_SET_DESC, func(to []byte) []byte {
		if s.Size > 0 {
			to = nl.AppendUint32(to, unix.NFTA_SET_DESC_SIZE, s.Size)
		}
		if s.Concatenation {
			to = appendFields(to, nftables.ConcatSetTypeElements(s.KeyType))
		}
		return to
	})
	if s.Interval { // nft prints keys in the order of the network
		order := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, 2)
		x.request = nl.Append(x.request, unix.NFTA_SET_USERDATA, order)
	}
}

// appendFields appends the sizes of the fields of a key.
func appendFields(to []byte, fields []nftables.SetDatatype) []byte {
	const fieldLen = 1 // NFTA_SET_FIELD_LEN (nf_tables.h)
	return nl.AppendNested(to, nftables.NFTA_SET_DESC_CONCAT, func(to []byte) []byte {
		for _, t := range fields {
			to = nl.AppendNested(to, unix.NFTA_LIST_ELEM, func(to []byte) []byte {
				return nl.AppendUint32(to, fieldLen, t.Bytes)
			})
		}
		return to
	})
}

// flags returns the flags of a set in the kernel.
func (s Set) flags() (flags uint32) {
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.Data != nil {
		flags |= unix.NFT_SET_MAP
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	if len(s.Key) > 1 {
		flags |= nftables.NFT_SET_CONCAT
	}
	return flags
}

func (x *exchange) addChain(o op) {
	x.aboutChain(o, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFTA_CHAIN_NAME)
	hook := o.chain.Hook
	if hook == nil {
		return
	}
	x.request = nl.AppendNested(x.request, unix.NFTA_CHAIN_HOOK, func(to []byte) []byte {
		to = nl.AppendUint32(to, unix.NFTA_HOOK_HOOKNUM, uint32(hook.Point))
		to = nl.AppendUint32(to, unix.NFTA_HOOK_PRIORITY, uint32(int32(hook.Priority)))
		if hook.Device != "" {
			to = nl.AppendString(to, unix.NFTA_HOOK_DEV, hook.Device)
		}
		return to
	})
	x.uint32(unix.NFTA_CHAIN_POLICY, uint32(expr.VerdictAccept))
	x.text(unix.NFTA_CHAIN_TYPE, hook.Type)
}

func (x *exchange) addRule(o op, r Rule) (err error) {
	x.aboutChain(o, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.NFTA_RULE_CHAIN)
	x.request = nl.AppendNested(x.request, unix.NFTA_RULE_EXPRESSIONS, func(to []byte) []byte {
		for _, e := range r.exprs() {
			attributes, failed := marshal(o.table.Family, e)
			err = errors.Join(err, failed)
			to = nl.AppendNested(to, unix.NFTA_LIST_ELEM, func(to []byte) []byte { return append(to, attributes...) })
		}
		return to
	})
	return err
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
	flags := x.request[x.last+6:] // of the last message
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
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
			to = nl.AppendUint32(to, unix.NFTA_SET_ELEM_FLAGS, catchall)
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
				userdata.AppendString(nil, userdata.NFTNL_UDATA_SET_ELEM_COMMENT, e.Comment))
		}
		return to
	})
	if !ends {
		return to
	}
	return nl.AppendNested(to, unix.NFTA_LIST_ELEM, func(to []byte) []byte {
		to = nl.AppendUint32(to, unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		return appendValue(to, unix.NFTA_SET_ELEM_KEY, e.End)
	})
}

func appendValue(to []byte, typ uint16, value string) []byte {
	return nl.AppendNested(to, typ, func(to []byte) []byte { return nl.Append(to, unix.NFTA_DATA_VALUE, value) })
}

func appendGoto(to []byte, chain string) []byte {
	verdict := expr.VerdictGoto
	return nl.AppendNested(to, unix.NFTA_SET_ELEM_DATA, func(to []byte) []byte {
		return nl.AppendNested(to, unix.NFTA_DATA_VERDICT, func(to []byte) []byte {
			to = nl.AppendUint32(to, unix.NFTA_VERDICT_CODE, uint32(verdict))
			return nl.AppendString(to, unix.NFTA_VERDICT_CHAIN, chain)
		})
	})
}
