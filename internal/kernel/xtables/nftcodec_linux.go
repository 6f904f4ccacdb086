package xtables

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nftFamily returns the number nf_tables has for a family.
func nftFamily(f Family) uint8 {
	if f == IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// nftNames are the names of iptables' tables.
func nftNames() []string { return []string{"raw", "mangle", "nat", "filter", "security"} }

// nfgenLen is the head of each message to and from nfnetlink.
const nfgenLen = 4

func nfgen(family uint8) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// header makes the head of a request to nf_tables.
func header(number int, flags netlink.HeaderFlags) netlink.Header {
	return netlink.Header{
		Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | number),
		Flags: netlink.Request | flags,
	}
}

// envelopes returns the messages that begin and end a transaction. It is refused
// with ERESTART if the generation is not the one it was made for. The last two
// bytes of their heads say that it is for nf_tables.
func envelopes(generation uint32) (begin, end netlink.Message, err error) {
	const forGeneration = 1 // NFNL_BATCH_GENID
	head := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.Uint32(forGeneration, generation)
	attrs, err := ae.Encode()
	mark := func(number netlink.HeaderType, data []byte) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: number, Flags: netlink.Request}, Data: data}
	}
	return mark(unix.NFNL_MSG_BATCH_BEGIN, slices.Concat(head, attrs)), mark(unix.NFNL_MSG_BATCH_END, head), err
}

// object is a table, chain or rule as nf_tables lists it.
type object struct {
	table  string
	chain  string
	hooked bool
	rule   Rule
	asks   bool // the rule asks something of packets
}

// attributes calls fn for each attribute of a message.
func attributes(message []byte, fn func(kind uint16, value []byte) error) error {
	if len(message) < nfgenLen {
		return fmt.Errorf("message of %d bytes", len(message))
	}
	return each(message[nfgenLen:], fn)
}

// each calls fn for each attribute: length and type of two bytes, then the
// value, padded to four.
func each(b []byte, fn func(kind uint16, value []byte) error) error {
	const head, flags = 4, unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	for len(b) >= head {
		size := int(binary.NativeEndian.Uint16(b))
		kind := binary.NativeEndian.Uint16(b[2:]) &^ flags
		if size < head || size > len(b) {
			return fmt.Errorf("attribute %d of %d bytes in %d", kind, size, len(b))
		}
		if err := fn(kind, b[head:size]); err != nil {
			return err
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// number reads a number in network order, of four or eight bytes.
func number(value []byte) uint64 {
	var n uint64
	for _, b := range value {
		n = n<<8 | uint64(b)
	}
	return n
}

func decodeGeneration(message []byte) (generation uint32, err error) {
	err = attributes(message, func(kind uint16, value []byte) error {
		if kind == unix.NFTA_GEN_ID {
			generation = uint32(number(value))
		}
		return nil
	})
	return generation, err
}

func decodeTable(message []byte) (o object, err error) {
	err = attributes(message, func(kind uint16, value []byte) error {
		if kind == unix.NFTA_TABLE_NAME {
			o.table = text(value)
		}
		return nil
	})
	return o, err
}

func decodeChain(message []byte) (o object, err error) {
	err = attributes(message, func(kind uint16, value []byte) error {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			o.table = text(value)
		case unix.NFTA_CHAIN_NAME:
			o.chain = text(value)
		case unix.NFTA_CHAIN_HOOK:
			o.hooked = true
		}
		return nil
	})
	return o, err
}

func decodeRule(message []byte) (o object, err error) {
	err = attributes(message, func(kind uint16, value []byte) error {
		switch kind {
		case unix.NFTA_RULE_TABLE:
			o.table = text(value)
		case unix.NFTA_RULE_CHAIN:
			o.chain = text(value)
		case unix.NFTA_RULE_HANDLE:
			o.rule.ID = number(value)
		case unix.NFTA_RULE_USERDATA:
			o.rule.Comment = userComment(value)
		case unix.NFTA_RULE_EXPRESSIONS:
			return each(value, o.expression)
		}
		return nil
	})
	return o, err
}

// expression decodes one expression of a rule, if it is one that matters.
func (o *object) expression(_ uint16, value []byte) error {
	var name string
	var data []byte
	err := each(value, func(kind uint16, value []byte) error {
		switch kind {
		case unix.NFTA_EXPR_NAME:
			name = text(value)
		case unix.NFTA_EXPR_DATA:
			data = value
		}
		return nil
	})
	if err != nil {
		return err
	}
	switch name {
	case "immediate":
		return each(data, o.rule.immediate)
	case "match", "target":
		return o.part(name, data)
	case "reject", "log":
		o.rule.Target = strings.ToUpper(name)
	case "counter":
	default:
		o.asks = true
	}
	return nil
}

// part decodes a match or a target of iptables.
func (o *object) part(expression string, data []byte) error {
	var name string
	var info []byte
	err := each(data, func(kind uint16, value []byte) error {
		switch kind {
		case unix.NFTA_MATCH_NAME: // NFTA_TARGET_NAME is the same
			name = text(value)
		case unix.NFTA_MATCH_INFO:
			info = value
		}
		return nil
	})
	switch {
	case expression == "target":
		o.rule.Target = name
	case name == "comment":
		o.rule.Comment = text(info)
	default:
		o.asks = true
	}
	return err
}

// immediate decodes a part of an immediate expression, if it is a verdict.
func (r *Rule) immediate(kind uint16, value []byte) error {
	if kind != unix.NFTA_IMMEDIATE_DATA {
		return nil
	}
	return each(value, func(kind uint16, value []byte) error {
		if kind != unix.NFTA_DATA_VERDICT {
			return nil
		}
		return each(value, r.verdict)
	})
}

// verdict decodes a part of a verdict; the chain comes after the code.
func (r *Rule) verdict(kind uint16, value []byte) error {
	switch kind {
	case unix.NFTA_VERDICT_CODE:
		r.Target = nftVerdict(int32(number(value)))
	case unix.NFTA_VERDICT_CHAIN:
		r.Target, r.Jump = text(value), true
	}
	return nil
}

// nftVerdict names a verdict as iptables does.
func nftVerdict(code int32) string {
	switch code {
	case unix.NFT_RETURN:
		return "RETURN"
	case 0:
		return "DROP"
	case 1:
		return "ACCEPT"
	}
	return fmt.Sprintf("verdict %d", code)
}

// userComment finds the comment that nft, and iptables before 1.8.3, keep with
// a rule: parts of type, length and value, of which the comment has type 0.
func userComment(b []byte) string {
	for len(b) >= 2 {
		length := int(b[1])
		if len(b) < 2+length {
			return ""
		}
		if b[0] == 0 {
			return text(b[2 : 2+length])
		}
		b = b[2+length:]
	}
	return ""
}

// deleteRules makes the message that deletes a rule, or without a handle all rules
// of a chain.
func deleteRules(t TableID, chain string, handle uint64) (netlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.String(unix.NFTA_RULE_TABLE, t.Name)
	ae.String(unix.NFTA_RULE_CHAIN, chain)
	if handle != 0 {
		ae.Uint64(unix.NFTA_RULE_HANDLE, handle)
	}
	return change(unix.NFT_MSG_DELRULE, t, ae)
}

// deleteChain makes the message that deletes a chain without rules.
func deleteChain(t TableID, chain string) (netlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.NFTA_CHAIN_TABLE, t.Name)
	ae.String(unix.NFTA_CHAIN_NAME, chain)
	return change(unix.NFT_MSG_DELCHAIN, t, ae)
}

func change(number int, t TableID, ae *netlink.AttributeEncoder) (netlink.Message, error) {
	attrs, err := ae.Encode()
	if err != nil {
		return netlink.Message{}, fmt.Errorf("encode message: %w", err)
	}
	return netlink.Message{
		Header: header(number, 0),
		Data:   append(nfgen(nftFamily(t.Family)), attrs...),
	}, nil
}

// changes returns the messages that carry a cut out, in an order in which any
// first part of them may be a transaction of its own: first nothing leads to
// what goes, then it is empty, then it goes.
func (c cut) changes(t Table) ([]netlink.Message, error) {
	var rules, flushes, chains []netlink.Message
	for i, chain := range t.Chains {
		if c.chains[chain.Name] {
			flush, err := deleteRules(t.TableID, chain.Name, 0)
			if err != nil {
				return nil, err
			}
			del, err := deleteChain(t.TableID, chain.Name)
			if err != nil {
				return nil, err
			}
			flushes, chains = append(flushes, flush), append(chains, del)
			continue
		}
		for j, rule := range chain.Rules {
			if !c.rules[place{i, j}] {
				continue
			}
			m, err := deleteRules(t.TableID, chain.Name, rule.ID)
			if err != nil {
				return nil, err
			}
			rules = append(rules, m)
		}
	}
	return slices.Concat(rules, flushes, chains), nil
}

// length returns how many bytes a message takes.
func length(m netlink.Message) int { return unix.NLMSG_HDRLEN + len(m.Data) }

// portions divides messages into as few parts of so many bytes as possible. A
// message alone is always small enough.
func portions(messages []netlink.Message, room int) [][]netlink.Message {
	var parts [][]netlink.Message
	start, size := 0, 0
	for i, m := range messages {
		if size += length(m); size > room && i > start {
			parts = append(parts, messages[start:i])
			start, size = i, length(m)
		}
	}
	return append(parts, messages[start:])
}
