package xtables

import (
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Change is one thing that changed in a table of the nft variant.
type Change struct {
	Table TableID
	Kind  string // "table", "chain", "rule"
	Gone  bool   // it was deleted
	Chain string // that it is, or that the rule is in
	Rule  Rule   // also of one that was deleted: the kernel shows it once more
	Every bool   // the rule is for every packet that comes to it
}

// DecodeChange understands what nf_tables tells its listeners; ok is false if it
// is about something else than iptables.
func DecodeChange(m netlink.Message) (change Change, ok bool) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfgenLen {
		return Change{}, false
	}
	c := Change{Table: TableID{Variant: NFT, Family: IPv4}}
	switch m.Data[0] {
	case unix.NFPROTO_IPV4:
	case unix.NFPROTO_IPV6:
		c.Table.Family = IPv6
	default:
		return Change{}, false
	}
	var o object
	var err error
	kind := int(m.Header.Type & 0xff)
	switch kind {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		c.Kind = "table"
		o, err = decodeTable(m.Data)
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		c.Kind = "chain"
		o, err = decodeChain(m.Data)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		c.Kind = "rule"
		o, err = decodeRule(m.Data)
	default:
		return Change{}, false
	}
	c.Gone = kind == unix.NFT_MSG_DELTABLE || kind == unix.NFT_MSG_DELCHAIN || kind == unix.NFT_MSG_DELRULE
	c.Table.Name, c.Chain, c.Rule, c.Every = o.table, o.chain, o.rule, !o.asks
	return c, err == nil && slices.Contains(nftNames(), o.table)
}
