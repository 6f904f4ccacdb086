package nft

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Edit is one transaction of another program that changed something we watch.
type Edit struct {
	What string // the first changes: "chain, rule"; or Lost
	By   string // name of the program, and its thread in the first PID namespace; empty: unknown
}

// Lost is the What of an edit if the kernel dropped notifications: anything may have changed.
const Lost = "notifications were lost"

// maxWhat is how many changes of an edit are named.
const maxWhat = 5

// watchBuffer is how many bytes of notifications the kernel keeps for a watch. Deleting a set with 100,000 elements
// makes some 10 MB; our own deletions do not reach the buffer.
const watchBuffer = 2 << 20

// Watch reports edits of nf_tables in one network namespace.
type Watch struct {
	NetNS int  // file descriptor of the namespace; 0: the caller's
	Own   *Own // the ports of writes to ignore

	What   func(Event) string // describes a change; empty: it does not matter
	Report func(Edit)         // may be called by several goroutines

	conn  *netlink.Conn
	found []string // the changes of the present transaction
}

// Watch calls report for each edit that another program makes to the tables. It returns nil when the context ends. It
// calls subscribed once it reports every edit from then on. It may run beside the goroutine that uses the Conn.
func (c *Conn) Watch(ctx context.Context, tables []Table, subscribed func(), report func(Edit)) error {
	w := &Watch{NetNS: c.netns, Own: c.own, Report: report, What: func(change Event) string {
		if slices.Contains(tables, change.Table) {
			return change.Kind
		}
		return ""
	}}
	return w.Run(ctx, subscribed)
}

// Run reports edits until the context ends; it returns nil then. It calls subscribed once it reports every edit from
// then on. It is called once.
func (w *Watch) Run(ctx context.Context, subscribed func()) error {
	if err := w.subscribe(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = w.conn.Close() }) // wakes Receive
	defer func() {
		stop()
		_ = w.conn.Close()
	}()
	w.Own.update(func() { w.Own.watches = append(w.Own.watches, w) })
	defer w.Own.update(func() {
		w.Own.watches = slices.DeleteFunc(w.Own.watches, func(other *Watch) bool { return other == w })
	})
	subscribed()
	for {
		messages, err := w.conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			w.found = nil
			w.Report(Edit{What: Lost})
		case err != nil:
			return fmt.Errorf("wait for changes of nf_tables: %w", err)
		}
		for _, m := range messages {
			w.add(m)
		}
	}
}

func (w *Watch) subscribe() (err error) {
	w.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: w.NetNS})
	if err != nil {
		return fmt.Errorf("open netlink socket to nf_tables: %w", err)
	}
	err = errors.Join(w.conn.SetReadBuffer(watchBuffer), w.conn.JoinGroup(unix.NFNLGRP_NFTABLES))
	if err != nil {
		return errors.Join(fmt.Errorf("subscribe to changes of nf_tables: %w", err), w.conn.Close())
	}
	return nil
}

// ignore makes the kernel send no message that was caused through one of these netlink ports, so that our writes cost
// almost nothing here. It may be called while another goroutine receives.
func (w *Watch) ignore(ports []uint32) error {
	if len(ports) == 0 {
		return w.conn.RemoveBPF()
	}
	const portOffset = 12 // of nlmsg_pid in struct nlmsghdr
	code := []bpf.Instruction{bpf.LoadAbsolute{Off: portOffset, Size: 4}}
	for i, port := range ports {
		var order [4]byte
		binary.NativeEndian.PutUint32(order[:], port)
		code = append(code, bpf.JumpIf{
			Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(order[:]), SkipTrue: uint8(len(ports) - i),
		})
	}
	filter, err := bpf.Assemble(append(code, bpf.RetConstant{Val: 1 << 31}, bpf.RetConstant{Val: 0}))
	if err != nil {
		return fmt.Errorf("make filter: %w", err)
	}
	return w.conn.SetBPF(filter)
}

// add adds a message of a transaction, and reports the edit with the last one, which announces the new generation.
func (w *Watch) add(m netlink.Message) {
	switch {
	case m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES, w.Own.has(m.Header.PID):
		return
	case m.Header.Type&0xff == unix.NFT_MSG_NEWGEN:
		if len(w.found) > maxWhat {
			w.found[maxWhat] = "and more"
		}
		if len(w.found) > 0 {
			w.Report(Edit{What: strings.Join(w.found, ", "), By: author(m)})
		}
		w.found = nil
		return
	}
	c, ok := decodeChange(m)
	if !ok {
		return
	}
	if what := w.What(c); what != "" && len(w.found) <= maxWhat && !slices.Contains(w.found, what) {
		w.found = append(w.found, what)
	}
}

// author returns the program that made a new generation, and the ID of its thread in the first PID namespace; empty
// if the message does not name it.
func author(m netlink.Message) string {
	by, pid := "", uint32(0)
	err := nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_GEN_PROC_PID:
			pid = ad.Uint32()
		case unix.NFTA_GEN_PROC_NAME:
			by = ad.String()
		}
	})
	if err != nil || by == "" || pid == 0 {
		return by
	}
	return fmt.Sprintf("%s (thread %d)", by, pid)
}

// Own are the netlink ports through which this program writes nf_tables of a network namespace. Watches ignore what
// is written through them. The zero value has none.
type Own struct {
	mu      sync.Mutex
	ports   []uint32
	watches []*Watch
}

// update changes ports or watches, and the filters of all watches. A watch whose filter the kernel refuses receives
// our own messages, too, and drops them by has.
func (o *Own) update(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
	for _, w := range o.watches {
		_ = w.ignore(o.ports)
	}
}

func (o *Own) add(port uint32) { o.update(func() { o.ports = append(o.ports, port) }) }

// remove must be called before a socket is closed: ports are process numbers, and a program in another container may
// get this one next.
func (o *Own) remove(port uint32) {
	o.update(func() { o.ports = slices.DeleteFunc(o.ports, func(p uint32) bool { return p == port }) })
}

func (o *Own) has(port uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Contains(o.ports, port)
}

// Program makes watches ignore a program that this process has started, until ended is called. It must be called
// before the program writes, and ended after the program has ended. The netlink port of a program is its process ID
// (net/netlink/af_netlink.c, netlink_autobind). If another socket in the namespace has that port, watches report the
// writes of the program. If that socket is still open at the end, it may have had the port all the time, in a
// container with process IDs of its own: watches have ignored its writes, and report that.
func (o *Own) Program(pid int) (ended func()) {
	port := uint32(pid)
	o.add(port)
	return func() {
		taken := portTaken(port)
		o.remove(port)
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, w := range o.watches {
			if taken {
				w.Report(Edit{What: Lost})
			}
		}
	}
}

// portTaken reports whether a netlink socket of netfilter in the calling thread's network namespace has this port. It
// returns false if that cannot be read.
func portTaken(port uint32) bool {
	file, err := os.Open("/proc/thread-self/net/netlink")
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // it was only read from
	protocol, number := strconv.Itoa(unix.NETLINK_NETFILTER), strconv.FormatUint(uint64(port), 10)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 2 && f[1] == protocol && f[2] == number {
			return true
		}
	}
	return false
}
