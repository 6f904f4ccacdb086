package iptables

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	e := transaction{ours: ours, mine: t.wrote}
	missed := func() {
		e.found = found{}
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
	mine  func(port uint32, by string, pid uint32) bool
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
	if len(e.found.what) == 0 {
		return Edit{}, false
	}
	edit := Edit{What: e.found.String()}
	e.found = found{}
	by, pid := nft.Author(m)
	if e.mine(m.Header.PID, by, pid) {
		return Edit{}, false
	}
	edit.By = by
	if by != "" && pid != 0 {
		edit.By = fmt.Sprintf("%s (thread %d)", by, pid)
	}
	return edit, true
}

// wrote reports whether an edit that passed the filter was made by a Restore. If another socket has
// the port of a program, the kernel assigns one beyond all process IDs; then the process
// ID in the message counts, if this process is in the first PID namespace. Otherwise the
// edit is reported, and the tables are compared once more than necessary.
func (t *Tools) wrote(port uint32, by string, pid uint32) bool {
	const beyond = 1 << 31
	return port >= beyond && t.own.was(pid) && t.isThreadName(by) && inFirstPIDNamespace()
}

// isThreadName reports whether a running PROGRAM-restore has this name in the kernel,
// which keeps 15 characters.
func (t *Tools) isThreadName(name string) bool {
	for _, p := range t.programs {
		program := filepath.Base(p.restore)
		if name == program[:min(len(program), 15)] {
			return true
		}
	}
	return false
}

// inFirstPIDNamespace reports whether this process is in the first PID namespace
// (linux/proc_ns.h, PROC_PID_INIT_INO).
func inFirstPIDNamespace() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && name == "pid:[4026531836]"
}
