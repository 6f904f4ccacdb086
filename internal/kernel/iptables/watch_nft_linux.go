package iptables

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// hear watches tables of the nft variant.
func (t *Tools) hear(ctx context.Context, ours func(string) bool, subscribed func(), tell func(Edit)) error {
	l, err := nft.Listen(t.opts.NetNS)
	if err != nil {
		return err
	}
	t.own.listen(l, func() { tell(Edit{What: lost}) })
	defer t.own.leave(l)
	subscribed()
	e := ear{ours: ours, mine: t.wrote}
	missed := func() {
		e.found = found{}
		tell(Edit{What: lost})
	}
	return l.Hear(ctx, missed, func(m netlink.Message) {
		if edit, ok := e.hear(m); ok {
			tell(edit)
		}
	})
}

// ear puts the messages of a transaction together. The last says that there is a
// new generation, and who made it.
type ear struct {
	ours  func(chain string) bool
	mine  func(port uint32, by string, pid uint32) bool
	found found
}

func (e *ear) hear(m netlink.Message) (Edit, bool) {
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

// ends reports whether a change is a new rule that ends every packet's way in a
// chain of the kernel's: nothing behind it matters any more.
func ends(c nft.Change) bool {
	return c.Table.Name != "mangle" && c.Rule.Every && !c.Gone && !c.Rule.Jump && c.Rule.Target != "" && c.Rule.Target != "LOG" &&
		slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, c.Chain)
}

// where names a table in the middle of a sentence.
func where(t Table) string {
	if t.Family == IPv6 {
		return " in " + t.Name + " of IPv6"
	}
	return " in " + t.Name
}

func (e *ear) end(m netlink.Message) (Edit, bool) {
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

// wrote reports whether an edit that came through the filter is ours all the
// same. The kernel gives a socket a port beyond all numbers of processes if
// another has the port it should have; then the process that it names is to be
// believed, if it counts processes as we do. Otherwise we tell of our own
// edit, and the tables are compared for nothing.
func (t *Tools) wrote(port uint32, by string, pid uint32) bool {
	const beyond = 1 << 31
	return port >= beyond && t.own.was(pid) && by == t.threadName() && countsAsKernel()
}

// threadName is what the kernel calls a running PROGRAM-restore; it keeps 15
// characters, which are the same in both families but for the first.
func (t *Tools) threadName() string {
	const room = 15
	name := filepath.Base(t.programs[IPv4].restore)
	return name[:min(len(name), room)]
}

// countsAsKernel reports whether this process is in the first PID namespace
// (linux/proc_ns.h, PROC_PID_INIT_INO).
func countsAsKernel() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && name == "pid:[4026531836]"
}
