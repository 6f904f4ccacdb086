package iptables

import (
	"context"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// Watch reports changes that other programs make to the tables nat, filter and mangle of both families, until the
// context ends; it returns nil then. It reports changes to chains of the proxy and to rules that jump to them, the
// deletion of a table, and new rules in a built-in chain that no packet gets past. Changes by Restore are not reported.
// Subscribed is called once all later changes are noticed. Only one Watch runs at a time.
//
// The kernel reports changes of nft tables at once. Legacy tables are polled: every change that another program
// makes to them is Unclear, and every Restore is followed by an Edit that is only Possible.
func (t *Tools) Watch(ctx context.Context, ours func(chain string) bool, subscribed func(), report func(Edit)) error {
	if t.variant == Legacy {
		return t.watchLegacy(ctx, subscribed, report)
	}
	w := &nft.Watch{
		NetNS: t.opts.NetNS, Own: &t.own,
		What:   func(c nft.Event) string { return describe(c, ours) },
		Report: func(e nft.Edit) { report(Edit{What: e.What, By: e.By}) },
	}
	return w.Run(ctx, subscribed)
}

// watched reports whether Watch covers a table of nf_tables.
func watched(t nft.Table) bool {
	return (t.Family == nft.IP4 || t.Family == nft.IP6) && (t.Name == "nat" || t.Name == "filter" || t.Name == "mangle")
}

// describe describes a change that Watch reports; empty: it does not report this one.
func describe(c nft.Event, ours func(chain string) bool) string {
	in := where(fromNFT(c.Table).table())
	switch {
	case !watched(c.Table):
	case c.Kind == "table" && c.Gone:
		return "table" + in
	case c.Kind == "chain" && ours(c.Chain):
		return "chain " + c.Chain + in
	case c.Kind == "rule" && (ours(c.Chain) || c.Rule.Jump && ours(c.Rule.Target) || ends(c)):
		return "rule of " + c.Chain + in
	}
	return ""
}

// ends reports whether a change is a new rule that ends the way of every packet in a
// chain of the kernel: the rules behind it have no effect any more.
func ends(c nft.Event) bool {
	return c.Table.Name != "mangle" && c.Rule.Every && !c.Gone && !c.Rule.Jump && c.Rule.Target != "" &&
		c.Rule.Target != "LOG" &&
		slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, c.Chain)
}

// where names a table in the middle of a sentence.
func where(t Table) string {
	if t.Family == IPv6 {
		return " in " + t.Name + " of IPv6"
	}
	return " in " + t.Name
}
