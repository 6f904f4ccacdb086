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

// batchMark begins or ends a transaction: the last two bytes say that it is for
// nf_tables.
func batchMark() []byte {
	return []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
}

// object is a table, chain or rule as nf_tables lists it.
type object struct {
	table  string
	chain  string
	hooked bool
	rule   Rule
}

// attributes calls fn for each attribute of a message.
func attributes(message []byte, fn func(*netlink.AttributeDecoder)) error {
	if len(message) < nfgenLen {
		return fmt.Errorf("message of %d bytes", len(message))
	}
	return each(message[nfgenLen:], fn)
}

func each(b []byte, fn func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		fn(ad)
	}
	return ad.Err()
}

func decodeTable(message []byte) (o object, err error) {
	err = attributes(message, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_TABLE_NAME {
			o.table = ad.String()
		}
	})
	return o, err
}

func decodeChain(message []byte) (o object, err error) {
	err = attributes(message, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			o.table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			o.chain = ad.String()
		case unix.NFTA_CHAIN_HOOK:
			o.hooked = true
		}
	})
	return o, err
}

func decodeRule(message []byte) (o object, err error) {
	err = attributes(message, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_RULE_TABLE:
			o.table = ad.String()
		case unix.NFTA_RULE_CHAIN:
			o.chain = ad.String()
		case unix.NFTA_RULE_HANDLE:
			o.rule.ID = ad.Uint64()
		case unix.NFTA_RULE_USERDATA:
			o.rule.Comment = userComment(ad.Bytes())
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(o.rule.expressions)
		}
	})
	return o, err
}

// expressions decodes what it knows of a rule.
func (r *Rule) expressions(list *netlink.AttributeDecoder) error {
	for list.Next() {
		var name string
		var data []byte
		list.Nested(func(ad *netlink.AttributeDecoder) error {
			for ad.Next() {
				switch ad.Type() {
				case unix.NFTA_EXPR_NAME:
					name = ad.String()
				case unix.NFTA_EXPR_DATA:
					data = ad.Bytes()
				}
			}
			return ad.Err()
		})
		if err := r.expression(name, data); err != nil {
			return fmt.Errorf("expression %q: %w", name, err)
		}
	}
	return list.Err()
}

func (r *Rule) expression(name string, data []byte) error {
	switch name {
	case "immediate":
		return each(data, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_IMMEDIATE_DATA {
				ad.Nested(r.data)
			}
		})
	case "match":
		match, info, err := part(data)
		if match == "comment" {
			r.Comment = text(info)
		}
		return err
	case "target":
		target, _, err := part(data)
		r.Target = target
		return err
	case "reject", "log":
		r.Target = strings.ToUpper(name)
	}
	return nil
}

// part decodes a match or a target of iptables.
func part(data []byte) (name string, info []byte, err error) {
	err = each(data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_MATCH_NAME: // NFTA_TARGET_NAME is the same
			name = ad.String()
		case unix.NFTA_MATCH_INFO:
			info = ad.Bytes()
		}
	})
	return name, info, err
}

// data decodes the data of an immediate expression, if it is a verdict.
func (r *Rule) data(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		if ad.Type() != unix.NFTA_DATA_VERDICT {
			continue
		}
		ad.Nested(func(ad *netlink.AttributeDecoder) error {
			for ad.Next() {
				switch ad.Type() {
				case unix.NFTA_VERDICT_CODE:
					r.Target = nftVerdict(int32(ad.Uint32()))
				case unix.NFTA_VERDICT_CHAIN:
					r.Target, r.Jump = ad.String(), true
				}
			}
			return ad.Err()
		})
	}
	return ad.Err()
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
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | number),
			Flags: netlink.Request,
		},
		Data: append(nfgen(nftFamily(t.Family)), attrs...),
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
