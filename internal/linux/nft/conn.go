package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn reads and writes nf_tables of one network namespace. Only Watch may run beside
// another method.
type Conn struct {
	netns  int
	own    *ownPorts
	lib    *nftables.Conn
	sock   *netlink.Conn
	buffer int // bytes to request
	room   int // bytes of one transaction
	large  int // see the constant of this name

	x *exchange // for what the library does not do
}

// Options for Open.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the caller's

	// Beside is another Conn of this program, or nil. Watch of either reports no edit that
	// was made through the other.
	Beside *Conn
}

const (
	// bufferSize is in bytes; the kernel doubles it: a transaction of some 8,000 elements, done in some 20 ms.
	bufferSize    = 512 << 10
	answerTimeout = 60 * time.Second // of one answer of the kernel
	readAttempts  = 10
	readPause     = 5 * time.Millisecond // after the first attempt to read a set; it grows by as much each time
)

// Open opens a Conn. No privilege is needed until it is used.
func Open(opt Options) (*Conn, error) {
	c := &Conn{netns: opt.NetNS, own: newOwnPorts(), buffer: bufferSize, large: large}
	c.x = newExchange(c)
	if opt.Beside != nil {
		c.own = opt.Beside.own
	}
	if err := c.dial(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Conn) dial() error {
	opts := []nftables.ConnOption{nftables.AsLasting(), nftables.WithSockOptions(c.configure)}
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

// configure sizes the buffers of the socket that the library opened, as a transaction is
// sent in one piece, and reads the size back: without privilege the kernel grants less.
func (c *Conn) configure(sock *netlink.Conn) error {
	c.sock = sock
	c.own.update(func() { c.own.ports[c] = sock.PID() })
	if err := sock.SetWriteBuffer(c.buffer); err != nil {
		return fmt.Errorf("size netlink send buffer: %w", err)
	}
	if err := sock.SetReadBuffer(c.buffer); err != nil {
		return fmt.Errorf("size netlink receive buffer: %w", err)
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach netlink socket: %w", err)
	}
	c.x.raw = raw
	var size int
	var optErr error
	if err := raw.Control(func(fd uintptr) {
		size, optErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
		optErr = errors.Join(optErr, requestLargeAnswers(int(fd)))
	}); err != nil {
		return fmt.Errorf("reach netlink socket: %w", err)
	}
	c.room = size * 3 / 4
	return optErr
}

// requestLargeAnswers makes the kernel answer in pieces of 32 KB, its maximum, by
// receiving one answer with a buffer of that size (af_netlink.c, netlink_recvmsg). The
// kernel walks a set from its beginning for each piece of a listing, and the library alone
// would receive pieces of 4 KB.
func requestLargeAnswers(fd int) error {
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
	c.own.update(func() { delete(c.own.ports, c) })
	return c.lib.CloseLasting()
}

// ownPorts are the netlink ports of the open Conns of this program. Its listeners
// ignore what is written through them. A port is removed with its Conn: ports are
// process numbers, and a program in another container may get it next.
type ownPorts struct {
	mu        sync.Mutex
	ports     map[*Conn]uint32
	listeners map[*Listener]bool
}

func newOwnPorts() *ownPorts {
	return &ownPorts{ports: map[*Conn]uint32{}, listeners: map[*Listener]bool{}}
}

// update changes ports or listeners and the filters of all listeners. A listener whose
// filter the kernel refuses receives our own messages, too, and drops them by contains.
func (o *ownPorts) update(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
	for l := range o.listeners {
		_ = l.Ignore(slices.Collect(maps.Values(o.ports))...)
	}
}

func (o *ownPorts) contains(port uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Contains(slices.Collect(maps.Values(o.ports)), port)
}

// Room returns how many bytes, by Tx.Bytes, one transaction may have.
func (c *Conn) Room() int { return c.room }

// Commit executes a transaction, all of it or nothing.
func (c *Conn) Commit(ctx context.Context, tx *Tx) error {
	if tx.Size() == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.commit(tx); err != nil {
		return fmt.Errorf("commit %d changes to nf_tables: %w", tx.Size(), err)
	}
	return nil
}

func (c *Conn) commit(tx *Tx) error {
	if tx.onlyElements() {
		return c.flush(tx, func() error { return c.commitElements(tx) })
	}
	if err := c.load(tx); err != nil {
		return errors.Join(fmt.Errorf("encode transaction: %w", err), c.redial())
	}
	return c.flush(tx, c.lib.Flush)
}

// exists reports whether a table exists; true also if the kernel does not answer.
func (c *Conn) exists(t Table) bool {
	_, err := c.lib.ListTableOfFamily(t.Name, t.table().Family)
	return !errors.Is(err, fs.ErrNotExist)
}

// Try executes a transaction in a table of its own that is deleted in the same
// transaction: it handles no packet, and no program can list it.
func (c *Conn) Try(ctx context.Context, temporary Table, tx *Tx) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	const dormant = 1 // NFT_TABLE_F_DORMANT
	table := temporary.table()
	table.Flags = dormant
	c.lib.AddTable(table)
	if err := c.load(tx); err != nil {
		return errors.Join(fmt.Errorf("encode transaction: %w", err), c.redial())
	}
	c.lib.DelTable(table)
	return c.flush(tx, c.lib.Flush)
}

// flush has a transaction sent.
func (c *Conn) flush(tx *Tx, send func() error) error {
	err := c.sock.SetDeadline(time.Now().Add(answerTimeout))
	if err == nil {
		err = send()
	}
	if err == nil {
		return nil
	}
	// The kernel refuses each message that depends on a refused one. The library returns
	// all errors; the first is the cause.
	isRejected := rejected(err)
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno
	}
	if failed := c.redial(); failed != nil {
		return errors.Join(err, failed)
	}
	if isRejected {
		return refusal(err, tx, c.exists)
	}
	return err
}

// redial replaces the socket after an error: the old one may still get answers, and
// messages may be loaded that must not be sent.
func (c *Conn) redial() error {
	_ = c.lib.CloseLasting()
	return c.dial()
}

// load encodes a transaction as messages, in the order that Tx documents.
func (c *Conn) load(tx *Tx) error {
	for _, t := range tx.dropped {
		c.lib.DelTable(t.table())
	}
	for _, t := range tx.tables {
		c.lib.AddTable(t.table())
	}
	for i, s := range tx.sets {
		set := s.set.set(s.table)
		set.ID = uint32(i + 1) // otherwise the library numbers the sets of all connections, without a lock
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
		if err := convert(b, c.lib.SetDeleteElements); err != nil {
			return err
		}
	}
	for _, b := range tx.adds {
		if err := convert(b, c.lib.SetAddElements); err != nil {
			return err
		}
	}
	c.loadDeletions(tx)
	return nil
}

// loadDeletions flushes all chains before it deletes the first, as their rules may jump
// from one to another.
func (c *Conn) loadDeletions(tx *Tx) {
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

// DeleteTables deletes the tables that exist, all of them or none.
func (c *Conn) DeleteTables(ctx context.Context, tables ...Table) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, t := range tables {
		c.lib.AddTable(t.table()) // deleting a table that is missing fails
		c.lib.DelTable(t.table())
	}
	if err := c.flush(&Tx{}, c.lib.Flush); err != nil {
		return fmt.Errorf("delete nf_tables tables: %w", err)
	}
	return nil
}

// Read returns the content of a table; nil if it does not exist. It returns as soon as
// the context ends.
func (c *Conn) Read(ctx context.Context, t Table, guesses []Guess) (state *State, err error) {
	err = c.retry(ctx, func() (err error) {
		state, err = c.read(t, guesses)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", t, err)
	}
	return state, nil
}

// retry calls do until no other program changes nf_tables during the call, with pauses
// that double. It returns as soon as the context ends.
func (c *Conn) retry(ctx context.Context, do func() error) error {
	const attempts, firstPause, lastPause = 20, time.Millisecond, 250 * time.Millisecond
	var err error
	for i := range attempts {
		if err = c.attempt(ctx, do); err == nil {
			return nil
		}
		err = errors.Join(ctx.Err(), err)
		if redialErr := c.redial(); redialErr != nil {
			return errors.Join(err, redialErr)
		}
		changed := errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ERESTART)
		if ctx.Err() != nil || !changed {
			return err
		}
		timer := time.NewTimer(min(firstPause<<i, lastPause))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
	return fmt.Errorf("other programs changed nf_tables during each of %d attempts: %w", attempts, err)
}

func (c *Conn) attempt(ctx context.Context, do func() error) error {
	defer c.stopWith(ctx)()
	if err := c.sock.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // the deadline may be later than that of stopWith
		return err
	}
	return do()
}

// stopWith ends every wait for the kernel when the context ends, until release is called.
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
