package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn talks to nf_tables of one network namespace. One goroutine uses it, but
// for Watch.
type Conn struct {
	netns int
	own   *own
	lib   *nftables.Conn
	sock  *netlink.Conn
	want  int // bytes of buffer
	room  int
}

// Options for Open.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the caller's

	// Beside is another Conn of the same program, or nil. Watch of either reports
	// nothing that was written through the other.
	Beside *Conn
}

const (
	wantRoom   = 512 << 10        // bytes; the kernel doubles it: a transaction of some 8,000 elements, done in some 20 ms
	perMessage = 48 << 10         // a netlink attribute holds at most 65,535 bytes
	patience   = 60 * time.Second // for one answer of the kernel
	readTries  = 10
	settle     = 5 * time.Millisecond
)

// Open opens a Conn. No privilege is needed until it is used.
func Open(opt Options) (*Conn, error) {
	c := &Conn{netns: opt.NetNS, own: newOwn(), want: wantRoom}
	if opt.Beside != nil {
		c.own = opt.Beside.own
	}
	if err := c.dial(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Conn) dial() error {
	opts := []nftables.ConnOption{nftables.AsLasting(), nftables.WithSockOptions(c.adopt)}
	if c.netns != 0 {
		opts = append(opts, nftables.WithNetNSFd(c.netns))
	}
	lib, err := nftables.New(opts...)
	if err != nil {
		return fmt.Errorf("open netlink socket to nf_tables: %w", err)
	}
	c.lib = lib
	return nil
}

// adopt sizes the socket the library opened: a transaction goes in one piece.
// Without privilege the kernel gives less than asked, so we read it back.
func (c *Conn) adopt(sock *netlink.Conn) error {
	c.sock = sock
	c.own.use(c, sock.PID())
	if err := sock.SetWriteBuffer(c.want); err != nil {
		return fmt.Errorf("size netlink send buffer: %w", err)
	}
	if err := sock.SetReadBuffer(c.want); err != nil {
		return fmt.Errorf("size netlink receive buffer: %w", err)
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach netlink socket: %w", err)
	}
	var size int
	var optErr error
	if err := raw.Control(func(fd uintptr) {
		size, optErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
		optErr = errors.Join(optErr, askForLargeAnswers(int(fd)))
	}); err != nil {
		return fmt.Errorf("reach netlink socket: %w", err)
	}
	c.room = size * 3 / 4
	return optErr
}

// askForLargeAnswers makes the kernel answer in pieces of 32 KB, the most it
// does, by receiving one answer with a buffer of that size (af_netlink.c,
// netlink_recvmsg). It walks the set from its beginning for each piece of a
// listing, and the library alone would get pieces of 4 KB.
func askForLargeAnswers(fd int) error {
	const request = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN
	b := make([]byte, 32<<10)
	binary.NativeEndian.PutUint32(b[0:], unix.NLMSG_HDRLEN+4)
	binary.NativeEndian.PutUint16(b[4:], request)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	if err := unix.Sendto(fd, b[:unix.NLMSG_HDRLEN+4], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask nf_tables for its generation: %w", err)
	}
	// Without privilege the answer is a refusal, and as good.
	if _, _, err := unix.Recvfrom(fd, b, 0); err != nil {
		return fmt.Errorf("read generation of nf_tables: %w", err)
	}
	return nil
}

// Close closes the socket.
func (c *Conn) Close() error {
	c.own.forget(c)
	return c.lib.CloseLasting()
}

// own are the netlink ports of the sockets in use, and the listeners that leave out
// what is done through them. A former port is not ours any more: as ports are
// process numbers, a program in another container may get it.
type own struct {
	mu        sync.Mutex
	ports     map[*Conn]uint32
	listeners map[*Listener]*Conn
}

func newOwn() *own { return &own{ports: map[*Conn]uint32{}, listeners: map[*Listener]*Conn{}} }

// use changes the port of a Conn, before anything is done through it. A listener
// that does not take a filter hears our writes, and asks has.
func (o *own) use(c *Conn, port uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ports[c] = port
	for l, of := range o.listeners {
		if of == c {
			_ = l.Ignore(port)
		}
	}
}

func (o *own) join(l *Listener, c *Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listeners[l] = c
	_ = l.Ignore(o.ports[c])
}

func (o *own) leave(l *Listener) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.listeners, l)
}

// forget takes out a Conn that is closed.
func (o *own) forget(c *Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.ports, c)
}

func (o *own) has(port uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, used := range o.ports {
		if used == port {
			return true
		}
	}
	return false
}

// Room returns how many bytes, by Tx.Bytes, one transaction may have.
func (c *Conn) Room() int { return c.room }

// Commit carries a transaction out, as a whole or not at all.
func (c *Conn) Commit(ctx context.Context, tx *Tx) error {
	if tx.Size() == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.load(tx); err != nil {
		return errors.Join(fmt.Errorf("encode transaction: %w", err), c.redial())
	}
	if err := c.flush(); err != nil {
		return fmt.Errorf("commit %d changes to nf_tables: %w", tx.Size(), err)
	}
	return nil
}

// flush sends what is loaded.
func (c *Conn) flush() error {
	err := c.sock.SetDeadline(time.Now().Add(patience))
	if err == nil {
		err = c.lib.Flush()
	}
	if err == nil {
		return nil
	}
	// The kernel refuses each message that builds on a refused one; the library
	// tells all of it, the first says what there is to say.
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno
	}
	return errors.Join(err, c.redial())
}

// redial replaces the socket after an error: answers may still be on their way
// to the old one, and messages be loaded that nobody wants sent.
func (c *Conn) redial() error {
	_ = c.lib.CloseLasting()
	return c.dial()
}

// load turns a transaction into messages, in the order that always works.
func (c *Conn) load(tx *Tx) error {
	for _, t := range tx.dropped {
		c.lib.DelTable(t.table())
	}
	for _, t := range tx.tables {
		c.lib.AddTable(t.table())
	}
	for i, s := range tx.sets {
		set := s.set.set(s.table)
		set.ID = uint32(i + 1) // else the library counts, for all connections together and without a lock
		if err := c.lib.AddSet(set, nil); err != nil {
			return err
		}
	}
	for _, in := range tx.chains {
		c.lib.AddChain(in.chain.chain(in.table))
	}
	for _, in := range tx.chains {
		chain := in.chain.chain(in.table)
		c.lib.FlushChain(chain)
		for _, r := range in.chain.Rules {
			c.lib.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: r.exprs()})
		}
	}
	for _, b := range tx.deletes {
		if err := b.each(c.lib.SetDeleteElements); err != nil {
			return err
		}
	}
	for _, b := range tx.adds {
		if err := b.each(c.lib.SetAddElements); err != nil {
			return err
		}
	}
	c.loadGone(tx)
	return nil
}

// loadGone empties all chains before it deletes the first: they may lead to
// each other.
func (c *Conn) loadGone(tx *Tx) {
	for _, g := range tx.flushed {
		c.lib.FlushChain(&nftables.Chain{Table: g.table.table(), Name: g.name})
	}
	for _, g := range tx.gone {
		if g.chain {
			c.lib.DelChain(&nftables.Chain{Table: g.table.table(), Name: g.name})
			continue
		}
		c.lib.DelSet(&nftables.Set{Table: g.table.table(), Name: g.name})
	}
}

// each hands the elements over in portions that fit into a message.
func (b bucket) each(send func(*nftables.Set, []nftables.SetElement) error) error {
	if len(b.elements) == 0 {
		return nil
	}
	set := b.set.set(b.table)
	var portion []nftables.SetElement
	bytes := 0
	for _, e := range b.elements {
		if bytes += e.Bytes(); bytes > perMessage {
			if err := send(set, portion); err != nil {
				return err
			}
			portion, bytes = portion[:0], e.Bytes() // send has encoded them
		}
		portion = append(portion, e.elements(b.set)...)
	}
	return send(set, portion)
}

// DeleteTables deletes the tables that exist, as a whole or not at all.
func (c *Conn) DeleteTables(ctx context.Context, tables ...Table) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, t := range tables {
		c.lib.AddTable(t.table()) // deleting a table that is missing fails
		c.lib.DelTable(t.table())
	}
	if err := c.flush(); err != nil {
		return fmt.Errorf("delete nf_tables tables: %w", err)
	}
	return nil
}

// Read returns what a table holds; nil if it does not exist. It stops as soon as the
// context ends.
func (c *Conn) Read(ctx context.Context, t Table) (*State, error) {
	defer c.stopWith(ctx)()
	var state *State
	var err error
	for range readTries {
		if err := c.sock.SetDeadline(time.Now().Add(patience)); err != nil {
			return nil, errors.Join(fmt.Errorf("read table %s: %w", t, err), c.redial())
		}
		if err := ctx.Err(); err != nil { // the deadline may be later than the one set for it
			return nil, err
		}
		state, err = c.read(t)
		// Another program's transaction interrupts the listing; a chain or a
		// set may vanish while we list.
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read table %s: %w", t, errors.Join(ctx.Err(), err)), c.redial())
	}
	return state, nil
}

// stopWith ends waits for the kernel when the context ends, until release is
// called.
func (c *Conn) stopWith(ctx context.Context) (release func()) {
	sock, done := c.sock, make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = sock.SetDeadline(time.Now()) // a closed socket waits for nothing
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}
