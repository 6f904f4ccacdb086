package nft

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Edit is one transaction of another program that changed a table we watch.
type Edit struct {
	What string // kinds of objects, "chain, rule"; or that the kernel dropped notifications
	By   string // name of the program, and its thread in the first PID namespace; empty: unknown
}

// lost is what an edit is if the kernel dropped notifications: anything may have changed.
const lost = "notifications were lost"

// Watch calls report for each edit that another program makes to the tables. It returns nil when the context ends. It
// calls subscribed once it reports every edit from then on. It may run beside the goroutine that uses the Conn.
func (c *Conn) Watch(ctx context.Context, tables []Table, subscribed func(), report func(Edit)) error {
	l, err := Listen(c.netns)
	if err != nil {
		return err
	}
	c.own.update(func() { c.own.listeners[l] = true })
	defer c.own.update(func() { delete(c.own.listeners, l) })
	subscribed()
	w := watch{tables: tables, own: c.own.contains}
	missed := func() {
		w.what = nil
		report(Edit{What: lost})
	}
	return l.Receive(ctx, missed, func(m netlink.Message) {
		if edit, ok := w.add(m); ok {
			report(edit)
		}
	})
}

// watch collects the messages of a transaction. The last message announces the new
// generation and names the program that made it.
type watch struct {
	tables []Table
	own    func(port uint32) bool
	what   []string
}

func (w *watch) add(m netlink.Message) (Edit, bool) {
	switch {
	case m.Header.PID != 0 && w.own(m.Header.PID), m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES:
		return Edit{}, false
	case m.Header.Type&0xff == unix.NFT_MSG_NEWGEN:
		return w.end(m)
	}
	kind := kindOf(m)
	if kind != "" && !slices.Contains(w.what, kind) && slices.Contains(w.tables, tableOf(m)) {
		w.what = append(w.what, kind)
	}
	return Edit{}, false
}

// end handles the last message of a transaction.
func (w *watch) end(m netlink.Message) (Edit, bool) {
	if len(w.what) == 0 {
		return Edit{}, false
	}
	slices.Sort(w.what)
	by, pid := Author(m)
	if pid != 0 {
		by = fmt.Sprintf("%s (thread %d)", by, pid)
	}
	edit := Edit{What: strings.Join(w.what, ", "), By: by}
	w.what = nil
	return edit, true
}

// tableOf returns the table that a message is about. Its name is attribute 1 in messages
// of all kinds (linux/netfilter/nf_tables.h).
func tableOf(m netlink.Message) (t Table) {
	err := nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_TABLE_NAME {
			t = Table{Family: Family(m.Data[0]), Name: ad.String()}
		}
	})
	if err != nil {
		return Table{}
	}
	return t
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

// deletes reports whether a message is about an object that was deleted.
func deletes(m netlink.Message) bool { return m.Header.Type&0xff%3 == unix.NFT_MSG_DELTABLE }
