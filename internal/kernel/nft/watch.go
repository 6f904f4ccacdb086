package nft

import (
	"context"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Edit is one transaction of another program that changed a table we watch.
type Edit struct {
	What []string // kinds of objects, "table", "chain", "rule", "set", "element"; sorted
	By   string   // name of the program; empty: unknown
	PID  uint32   // of its thread, in the first PID namespace; 0: unknown

	// Lost says that the kernel had more to tell than it could keep: anything
	// may have changed.
	Lost bool
}

// String describes the edit in a few words.
func (e Edit) String() string {
	if e.Lost {
		return "notifications were lost"
	}
	return strings.Join(e.What, ", ")
}

// Watch tells of edits that others make to tables, until the context ends; it
// returns nil then. Subscribed is called when it hears everything from then on.
// It may run beside the goroutine that uses the Conn.
func (c *Conn) Watch(ctx context.Context, tables []Table, subscribed func(), tell func(Edit)) error {
	l, err := Listen(c.netns)
	if err != nil {
		return err
	}
	c.own.join(l, c)
	defer c.own.leave(l)
	subscribed()
	w := watch{tables: tables, ours: c.own.has}
	lost := func() {
		w.what = nil
		tell(Edit{Lost: true})
	}
	return l.Hear(ctx, lost, func(m netlink.Message) {
		if edit, ok := w.hear(m); ok {
			tell(edit)
		}
	})
}

// watch puts the messages of a transaction together. The last of them says that
// there is a new generation, and who made it.
type watch struct {
	tables []Table
	ours   func(port uint32) bool
	what   []string
}

func (w *watch) hear(m netlink.Message) (Edit, bool) {
	if m.Header.PID != 0 && w.ours(m.Header.PID) {
		return Edit{}, false
	}
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfgenLen {
		return Edit{}, false
	}
	if m.Header.Type&0xff == unix.NFT_MSG_NEWGEN {
		return w.end(m)
	}
	kind := kindOf(m.Header.Type & 0xff)
	if kind != "" && !slices.Contains(w.what, kind) && slices.Contains(w.tables, tableOf(m)) {
		w.what = append(w.what, kind)
	}
	return Edit{}, false
}

// end takes the last message of a transaction.
func (w *watch) end(m netlink.Message) (Edit, bool) {
	if len(w.what) == 0 {
		return Edit{}, false
	}
	edit := Edit{What: w.what}
	w.what = nil
	slices.Sort(edit.What)
	edit.By, edit.PID = Author(m)
	return edit, true
}

// nfgenLen is the size of struct nfgenmsg, with which each message begins.
const nfgenLen = 4

// tableOf returns the table a message is about. Its name is attribute 1 in
// messages of all kinds (linux/netfilter/nf_tables.h).
func tableOf(m netlink.Message) Table {
	attrs, err := netlink.UnmarshalAttributes(m.Data[nfgenLen:])
	if err != nil {
		return Table{}
	}
	for _, a := range attrs {
		if a.Type == unix.NFTA_TABLE_NAME {
			return Table{Family: Family(m.Data[0]), Name: strings.TrimRight(string(a.Data), "\x00")}
		}
	}
	return Table{}
}

// kindOf names the kind of object a message is about.
func kindOf(message netlink.HeaderType) string {
	switch message {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		return "table"
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		return "chain"
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return "rule"
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		return "set"
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		return "element"
	default:
		return ""
	}
}
