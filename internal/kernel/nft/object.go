package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Change is a change to a table, chain or rule of any program.
type Change struct {
	Table Table
	Kind  string // "table", "chain", "rule"
	Gone  bool   // it was deleted
	Chain string // the chain, or that of the rule
	Rule  RuleOutline
}

// DecodeChange decodes a notification; ok is false if it is about anything but a
// table, chain or rule.
func DecodeChange(m netlink.Message) (c Change, ok bool) {
	kind := kindOf(m.Header.Type & 0xff)
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || kind != "table" && kind != "chain" && kind != "rule" {
		return Change{}, false
	}
	o, err := decodeObject(m)
	c.Gone = slices.Contains([]int{unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE}, int(m.Header.Type&0xff))
	c.Table, c.Kind, c.Chain, c.Rule = o.table, kind, o.chain, o.rule
	return c, err == nil
}

// object is what one message says about a table, chain or rule.
type object struct {
	table Table
	chain string
	base  bool
	hook  Point
	rule  RuleOutline
}

func decodeObject(m netlink.Message) (object, error) {
	if len(m.Data) < nfgenLen {
		return object{}, fmt.Errorf("decode message of %d bytes: too short", len(m.Data))
	}
	o := object{table: Table{Family: Family(m.Data[0])}, rule: RuleOutline{Every: true}}
	ad, err := netlink.NewAttributeDecoder(m.Data[nfgenLen:])
	if err != nil {
		return o, fmt.Errorf("decode message: %w", err)
	}
	ad.ByteOrder = binary.BigEndian
	kind := kindOf(m.Header.Type & 0xff)
	for ad.Next() {
		switch {
		case ad.Type() == unix.NFTA_TABLE_NAME: // the same number in all kinds
			o.table.Name = ad.String()
		case kind == "chain" && ad.Type() == unix.NFTA_CHAIN_NAME, kind == "rule" && ad.Type() == unix.NFTA_RULE_CHAIN:
			o.chain = ad.String()
		case kind == "chain" && ad.Type() == unix.NFTA_CHAIN_HOOK:
			o.base = true
			ad.Nested(o.hook.decode)
		case kind == "rule" && ad.Type() == unix.NFTA_RULE_HANDLE:
			o.rule.Handle = ad.Uint64()
		case kind == "rule" && ad.Type() == unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(o.rule.decode)
		}
	}
	if err := ad.Err(); err != nil {
		return o, fmt.Errorf("decode %s of %s %s: %w", kind, o.table, o.chain, err)
	}
	return o, nil
}

func (p *Point) decode(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		if ad.Type() == unix.NFTA_HOOK_HOOKNUM {
			*p = Point(ad.Uint32())
		}
	}
	return ad.Err()
}

// decode decodes a list of expressions.
func (r *RuleOutline) decode(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		ad.Nested(r.expression)
	}
	return ad.Err()
}

// expression decodes one expression. Extensions of iptables are the expressions
// "match" and "target".
func (r *RuleOutline) expression(ad *netlink.AttributeDecoder) error {
	name := ""
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME: // comes before the data
			name = ad.String()
			r.Every = r.Every && unconditional(name)
		case unix.NFTA_EXPR_DATA:
			if name == "immediate" || name == "match" || name == "target" {
				ad.Nested(func(ad *netlink.AttributeDecoder) error { return r.data(name, ad) })
			}
		}
	}
	if name == "reject" || name == "log" {
		r.Target = strings.ToUpper(name)
	}
	return ad.Err()
}

// unconditional reports whether a rule applies to all packets in spite of an
// expression; of a match it depends on its name.
func unconditional(expression string) bool {
	switch expression {
	case "immediate", "match", "target", "reject", "log", "counter":
		return true
	}
	return false
}

// data decodes the data of an expression.
func (r *RuleOutline) data(expression string, ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch {
		case expression == "immediate" && ad.Type() == unix.NFTA_IMMEDIATE_DATA:
			ad.Nested(r.immediate)
		case expression == "match" && ad.Type() == unix.NFTA_MATCH_NAME:
			r.Every = r.Every && ad.String() == "comment"
		case expression == "target" && ad.Type() == unix.NFTA_TARGET_NAME:
			r.Target = ad.String()
		}
	}
	return ad.Err()
}

// immediate decodes the data of an immediate expression if that is a verdict.
func (r *RuleOutline) immediate(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		if ad.Type() == unix.NFTA_DATA_VERDICT {
			ad.Nested(r.verdict)
		}
	}
	return ad.Err()
}

// verdict decodes a verdict, named as iptables does. The chain comes after the
// code.
func (r *RuleOutline) verdict(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_VERDICT_CODE:
			r.Target = verdictName(int32(ad.Uint32()))
		case unix.NFTA_VERDICT_CHAIN:
			r.Target, r.Jump = ad.String(), true
		}
	}
	return ad.Err()
}

func verdictName(code int32) string {
	const drop, accept = 0, 1 // NF_DROP, NF_ACCEPT of linux/netfilter.h
	switch code {
	case unix.NFT_RETURN:
		return "RETURN"
	case drop:
		return "DROP"
	case accept:
		return "ACCEPT"
	}
	return fmt.Sprintf("verdict %d", code)
}
