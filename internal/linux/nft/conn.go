package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Conn reads and writes nf_tables of one network namespace. Only Watch may run beside another method.
type Conn struct {
	netns  int
	own    *Own
	lib    *nftables.Conn
	sock   *netlink.Conn
	buffer int // bytes to request
	room   int // bytes of one transaction

	x *exchange // for what the library does not do
}

// Options for Open.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the caller's

	// Beside is another Conn of this program, or nil. Watch of either reports no edit that was made through the other.
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
	c := &Conn{netns: opt.NetNS, own: &Own{}, buffer: bufferSize, x: &exchange{large: large}}
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
	size := 0
	err := errors.Join(sock.SetWriteBuffer(c.buffer), sock.SetReadBuffer(c.buffer))
	if err == nil {
		size, err = sock.WriteBuffer()
	}
	if err != nil {
		return fmt.Errorf("size netlink buffers: %w", err)
	}
	if c.x.sock, err = nl.NewSocket(sock); err != nil {
		return err
	}
	c.room = size * 3 / 4
	c.own.add(sock.PID())
	return nil
}

// Close closes the socket.
func (c *Conn) Close() error {
	c.own.remove(c.sock.PID())
	return c.lib.CloseLasting()
}

// Room returns how many bytes, by Tx.Bytes, one transaction may have.
func (c *Conn) Room() int { return c.room }

// Commit executes a transaction, all of it or nothing.
func (c *Conn) Commit(ctx context.Context, tx *Tx) error {
	if tx.Size() == 0 {
		return nil
	}
	if err := c.execute(ctx, tx.all()); err != nil {
		return fmt.Errorf("commit %d changes to nf_tables: %w", tx.Size(), err)
	}
	return nil
}

// Try executes a transaction in a table of its own that is deleted in the same
// transaction: it handles no packet, and no program can list it.
func (c *Conn) Try(ctx context.Context, temporary Table, tx *Tx) error {
	add, drop := []op{{kind: addTable, table: temporary}}, []op{{kind: dropTable, table: temporary}}
	return c.execute(ctx, slices.Concat(add, tx.all(), drop))
}

// DeleteTables deletes the tables that exist, all of them or none.
func (c *Conn) DeleteTables(ctx context.Context, tables ...Table) error {
	var ops []op
	for _, t := range tables { // deleting a table that is missing fails
		ops = append(ops, op{kind: addTable, table: t}, op{kind: dropTable, table: t})
	}
	if err := c.execute(ctx, ops); err != nil {
		return fmt.Errorf("delete nf_tables tables: %w", err)
	}
	return nil
}

// execute executes operations in one transaction.
func (c *Conn) execute(ctx context.Context, ops []op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := c.sock.SetDeadline(time.Now().Add(answerTimeout))
	if err == nil {
		err = c.x.transact(ops)
	}
	if err == nil {
		return nil
	}
	if answer, is := errors.AsType[*netlink.OpError](err); is && answer.Op == "receive" {
		err = refusal(answer.Err)
	}
	return errors.Join(err, c.redial())
}

// redial replaces the socket after an error: the old one may still get answers.
func (c *Conn) redial() error {
	_ = c.Close()
	return c.dial()
}

// Read returns the content of a table; nil if it does not exist. It returns as soon as the context ends.
func (c *Conn) Read(ctx context.Context, t Table, expected []ExpectedKeys) (state *State, err error) {
	err = c.retry(ctx, func() (err error) {
		state, err = c.read(t, expected)
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
		select {
		case <-ctx.Done():
		case <-time.After(min(firstPause<<i, lastPause)):
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

// RefusedError is the error of a transaction that the kernel rejects because of its
// contents. None of it is carried out.
type RefusedError struct{ Err error }

// Error returns the reason.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// refusal returns the error for the kernel's answer to a transaction. It is a RefusedError unless the answer is about
// missing privilege, lack of memory, or an object that is missing (ENOENT), as another program has deleted it.
func refusal(answer error) error {
	passing := []error{unix.EPERM, unix.EACCES, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR, unix.ENOENT}
	if slices.Contains(passing, answer) {
		return answer
	}
	return &RefusedError{answer}
}
