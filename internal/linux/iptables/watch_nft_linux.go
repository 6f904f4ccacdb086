package iptables

import (
	"context"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// watchNFT watches tables of the nft variant.
func (t *Tools) watchNFT(ctx context.Context, ours func(string) bool, subscribed func(), report func(Edit)) error {
	l, err := nft.Listen(t.opts.NetNS)
	if err != nil {
		return err
	}
	t.own.listen(l, func() { report(Edit{What: lost}) })
	defer t.own.leave(l)
	subscribed()
	e := transaction{ours: ours}
	missed := func() {
		e.found = nil
		report(Edit{What: lost})
	}
	return l.Receive(ctx, missed, func(m netlink.Message) {
		if edit, ok := e.add(m); ok {
			report(edit)
		}
	})
}

// transaction collects the messages of a transaction. The last one has the number of the
// new generation, and its author.
type transaction struct {
	ours  func(chain string) bool
	found found
}

// add returns the edit once the transaction is complete.
func (e *transaction) add(m netlink.Message) (Edit, bool) {
	if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
		return e.end(m)
	}
	c, ok := nft.DecodeChange(m)
	if !ok || !watched(c.Table) {
		return Edit{}, false
	}
	what := ""
	switch {
	case c.Kind == "table" && c.Gone:
		what = "table"
	case c.Kind == "chain" && e.ours(c.Chain):
		what = "chain " + c.Chain
	case c.Kind == "rule" && (e.ours(c.Chain) || c.Rule.Jump && e.ours(c.Rule.Target) || ends(c)):
		what = "rule of " + c.Chain
	}
	if what != "" {
		e.found.add(what + where(fromNFT(c.Table).table()))
	}
	return Edit{}, false
}

// ends reports whether a change is a new rule that ends the way of every packet in a
// chain of the kernel: the rules behind it have no effect any more.
func ends(c nft.Change) bool {
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

func (e *transaction) end(m netlink.Message) (Edit, bool) {
	if len(e.found) == 0 {
		return Edit{}, false
	}
	edit := Edit{What: e.found.String()}
	e.found = nil
	by, pid := nft.Author(m)
	edit.By = by
	if by != "" && pid != 0 {
		edit.By = fmt.Sprintf("%s (thread %d)", by, pid)
	}
	return edit, true
}
