package nft

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// observer is a Conn whose tables are watched.
type observer struct {
	t     *testing.T
	conn  *Conn
	netns int
	edits chan Edit
}

func observe(t *testing.T) *observer {
	t.Helper()
	conn, netns := realKernel(t)
	o := &observer{t: t, conn: conn, netns: netns, edits: make(chan Edit, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done, listening := make(chan error, 1), make(chan struct{})
	go func() {
		done <- o.conn.Watch(ctx, tables, func() { close(listening) }, func(e Edit) { o.edits <- e })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the watch ended with: %v", err)
		}
	})
	<-listening
	return o
}

// nft runs nft in the namespace.
func (o *observer) nft(command string) {
	o.t.Helper()
	runNft(o.t, o.netns, command)
}

// next waits for the next reported edit.
func (o *observer) next() Edit {
	o.t.Helper()
	select {
	case e := <-o.edits:
		return e
	case <-time.After(20 * time.Second):
		o.t.Fatal("no edit was reported")
		return Edit{}
	}
}

// fill adds a table with a set, a chain and elements.
func (o *observer) fill(elements int) {
	o.t.Helper()
	tx := &Tx{}
	tx.AddTable(ip4)
	tx.AddSet(ip4, some)
	tx.SetChain(ip4, Chain{Name: "mine"})
	for i := range elements {
		tx.Add(ip4, some, Element{Key: string(Key{}.Addr(addr(IP4, i)))})
	}
	commit(o.t, o.conn, tx)
}

func TestEditsOfOtherProgramsAreReported(t *testing.T) {
	o := observe(t)
	for _, tt := range []struct {
		command string
		want    string
	}{
		{"add rule ip t mine drop", "rule"},
		{"add rule ip t mine drop; flush chain ip t mine", "rule"},
		{"add chain ip t theirs", "chain"},
		{"add element ip t some { 198.51.100.1 }", "element"},
		{"delete element ip t some { 198.51.100.1 }", "element"},
		{"delete chain ip t mine", "chain"},
		{"delete table ip t", "set, chain, table"},
		{"flush ruleset", "set, chain, table"},
	} {
		o.fill(3)
		o.nft("add table ip foreign; add chain ip foreign c; delete table ip foreign") // not watched
		o.nft(tt.command)
		e := o.next()
		if e.What != tt.want || !strings.HasPrefix(e.By, "nft (thread ") {
			t.Errorf("after %q: reported %+v, want %v by nft", tt.command, e, tt.want)
		}
	}
	if len(o.edits) > 0 {
		t.Errorf("too many reports: %v", <-o.edits)
	}
}

// Own writes are not reported, not even after the socket was replaced.
func TestOwnWritesAreNotReported(t *testing.T) {
	o := observe(t)
	for range 3 {
		o.fill(1000)
		if err := o.conn.redial(); err != nil {
			t.Fatal(err)
		}
		o.fill(2000)
		if err := o.conn.DeleteTables(t.Context(), ip4); err != nil {
			t.Fatal(err)
		}
	}
	o.fill(1)
	o.nft("delete table ip t")
	if e := o.next(); !strings.HasPrefix(e.By, "nft ") {
		t.Errorf("reported %+v, want only the edit of nft", e)
	}
}

// Writes through another Conn of this program are not reported. The kernel filters them:
// without that, they would fill the buffer of the Watch and count as lost.
func TestWritesThroughAnotherConnAreNotReported(t *testing.T) {
	o := observe(t)
	o.fill(1)
	beside, err := Open(Options{NetNS: o.netns, Beside: o.conn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = beside.Close() })
	for n := range 10 {
		tx := &Tx{}
		for i := range 5000 {
			tx.Add(ip4, some, Element{Key: string(Key{}.Addr(addr(IP4, 10+5000*n+i)))})
		}
		commit(t, beside, tx)
	}
	if err := beside.DeleteTables(t.Context(), ip4); err != nil {
		t.Fatal(err)
	}
	o.fill(1)
	o.nft("delete table ip t")
	if e := o.next(); !strings.HasPrefix(e.By, "nft ") {
		t.Errorf("reported %+v, want only the edit of nft", e)
	}
}

// An edit of a program that gets the netlink port of a former socket is reported.
func TestEditsFromAClosedNetlinkPortAreReported(t *testing.T) {
	o := observe(t)
	o.fill(1)
	former := o.conn.sock.PID()
	// Another program takes the port as soon as it is free.
	if err := o.conn.Close(); err != nil {
		t.Fatal(err)
	}
	other, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: o.netns, PID: former})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := o.conn.dial(); err != nil {
		t.Fatal(err)
	}
	name := append([]byte{6, 0, unix.NFTA_TABLE_NAME, 0, 't', 0}, 0, 0)
	message := func(kind int, data ...byte) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request}, Data: data}
	}
	if _, err := other.SendMessages([]netlink.Message{
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, 0, unix.NFNL_SUBSYS_NFTABLES),
		message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE, append([]byte{unix.NFPROTO_IPV4, 0, 0, 0}, name...)...),
		message(unix.NFNL_MSG_BATCH_END, 0, 0, 0, unix.NFNL_SUBSYS_NFTABLES),
	}); err != nil {
		t.Fatal(err)
	}
	if e := o.next(); !strings.Contains(e.What, "table") {
		t.Errorf("reported %+v, want a deleted table", e)
	}
}

// A flush that causes more notifications than the buffer holds is reported.
func TestALargeFlushIsReported(t *testing.T) {
	o := observe(t)
	for n := range 20 {
		tx := &Tx{}
		tx.AddTable(ip4)
		tx.AddSet(ip4, some)
		for i := range 5000 {
			tx.Add(ip4, some, Element{Key: string(Key{}.Addr(addr(IP4, 5000*n+i)))})
		}
		commit(t, o.conn, tx)
	}
	o.nft("flush ruleset")
	e := o.next()
	t.Logf("reported %+v", e)
	if e.What != Lost && !strings.Contains(e.What, "table") {
		t.Errorf("reported %+v, want a deleted table, or lost notifications", e)
	}
}
