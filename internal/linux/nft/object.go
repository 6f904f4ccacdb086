package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Event is a change to an object in a table of any program.
type Event struct {
	Table Table
	Kind  string // "table", "chain", "rule", "set" or "element"
	Gone  bool   // it was deleted
	Chain string // the chain, or that of the rule
	Rule  RuleOutline
}

// decodeChange decodes a notification of nf_tables; ok is false if it is about an object of another kind.
func decodeChange(m netlink.Message) (c Event, ok bool) {
	kind, gone := kindOf(m), m.Header.Type&0xff%3 == unix.NFT_MSG_DELTABLE
	if kind == "" {
		return Event{}, false
	}
	o, err := decodeObject(m)
	return Event{Table: o.table, Kind: kind, Gone: gone, Chain: o.chain, Rule: o.rule}, err == nil
}

// kindOf returns the kind of object that a message is about; "" for any other message. Each kind
// has three numbers: to add, to request and to delete one (linux/netfilter/nf_tables.h).
func kindOf(m netlink.Message) string {
	kinds := []string{"table", "chain", "rule", "set", "element"}
	if n := int(m.Header.Type & 0xff / 3); n < len(kinds) {
		return kinds[n]
	}
	return ""
}

const tableHandle = 4 // NFTA_TABLE_HANDLE

// object is the content of one message; of one about a set or element only the table.
type object struct {
	table  Table
	handle uint64 // of the table
	chain  string
	base   bool
	hook   Point
	rule   RuleOutline
}

func decodeObject(m netlink.Message) (object, error) {
	o, kind := object{rule: RuleOutline{Every: true}}, kindOf(m)
	err := nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		o.table.Family = Family(m.Data[0])
		switch {
		case ad.Type() == unix.NFTA_TABLE_NAME: // the same number in all kinds
			o.table.Name = ad.String()
		case kind == "table" && ad.Type() == tableHandle:
			o.handle = ad.Uint64()
		case kind == "chain" && ad.Type() == unix.NFTA_CHAIN_NAME, kind == "rule" && ad.Type() == unix.NFTA_RULE_CHAIN:
			o.chain = ad.String()
		case kind == "chain" && ad.Type() == unix.NFTA_CHAIN_HOOK:
			o.base = true
			nl.Nested(ad, o.hook.decode)
		case kind == "rule" && ad.Type() == unix.NFTA_RULE_HANDLE:
			o.rule.Handle = ad.Uint64()
		case kind == "rule" && ad.Type() == unix.NFTA_RULE_EXPRESSIONS:
			nl.Nested(ad, o.rule.decode)
		}
	})
	if err != nil {
		return o, fmt.Errorf("%s of %s %s: %w", kind, o.table, o.chain, err)
	}
	return o, nil
}

func (p *Point) decode(ad *netlink.AttributeDecoder) {
	if ad.Type() == unix.NFTA_HOOK_HOOKNUM {
		*p = Point(ad.Uint32())
	}
}

// decode decodes one expression of a list. Extensions of iptables are the expressions "match" and "target".
func (r *RuleOutline) decode(expression *netlink.AttributeDecoder) {
	name := ""
	nl.Nested(expression, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME: // comes before the data
			name = ad.String()
			r.Every = r.Every && unconditional(name)
		case unix.NFTA_EXPR_DATA:
			if name == "immediate" || name == "match" || name == "target" {
				nl.Nested(ad, func(ad *netlink.AttributeDecoder) { r.decodeData(name, ad) })
			}
		}
	})
	if name == "reject" || name == "log" {
		r.Target = strings.ToUpper(name)
	}
}

// unconditional reports whether a rule with this expression may still apply to all
// packets; for a match that depends on its name.
func unconditional(expression string) bool {
	return slices.Contains([]string{"immediate", "match", "target", "reject", "log", "counter"}, expression)
}

// decodeData decodes an attribute of the data of an expression.
func (r *RuleOutline) decodeData(expression string, ad *netlink.AttributeDecoder) {
	switch {
	case expression == "immediate" && ad.Type() == unix.NFTA_IMMEDIATE_DATA:
		nl.Nested(ad, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_DATA_VERDICT {
				nl.Nested(ad, r.decodeVerdict)
			}
		})
	case expression == "match" && ad.Type() == unix.NFTA_MATCH_NAME:
		r.Every = r.Every && ad.String() == "comment"
	case expression == "target" && ad.Type() == unix.NFTA_TARGET_NAME:
		r.Target = ad.String()
	}
}

// decodeVerdict decodes an attribute of a verdict, and names it as iptables does. The chain comes after the code.
func (r *RuleOutline) decodeVerdict(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_VERDICT_CODE:
		r.Target = verdictName(int32(ad.Uint32()))
	case unix.NFTA_VERDICT_CHAIN:
		r.Target, r.Jump = ad.String(), true
	}
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
