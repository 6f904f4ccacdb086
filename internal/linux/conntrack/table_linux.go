package conntrack

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Message types of the conntrack subsystem of nfnetlink.
const (
	msgNew    = 1 << 8
	msgGet    = 1<<8 | 1
	msgDelete = 1<<8 | 2
)

// attempts is the maximum number of attempts of a listing that the kernel interrupts by resizing the table.
const attempts = 5

// Table is the connection tracking table of one network namespace. Its methods may be called from several goroutines.
type Table struct {
	netns int

	mu     sync.Mutex
	socket *socket // for requests other than listings and subscriptions; guarded by mu
}

// Open opens the table of the network namespace of a file descriptor, or of the current one if it is 0.
func Open(netns int) (*Table, error) {
	s, err := dial(netns)
	if err != nil {
		return nil, err
	}
	return &Table{netns: netns, socket: s}, nil
}

// Close closes the socket.
func (t *Table) Close() error { return t.socket.Close() }

// Each calls fn for every matching entry while it reads the table. It may call fn twice for one entry, and fn may
// delete entries. It stops at the first error of fn, or when ctx is done. It also returns an error if the kernel
// resized the table during every attempt.
//
// Kernels from 5.8 on filter the entries. Older kernels send all entries of the family, which takes longer.
func (t *Table) Each(ctx context.Context, f Filter, fn func(Entry) error) error {
	matching := func(e Entry) error {
		if !f.Match(e) {
			return nil
		}
		return fn(e)
	}
	err := repeat(func() error { return t.list(ctx, encodeFilter(f), matching) })
	if refused(err) { // the kernel supports filters, but not this one
		err = repeat(func() error { return t.list(ctx, header(f.Family), matching) })
	}
	if err != nil {
		return fmt.Errorf("list conntrack entries (%s): %w%s", f, err, remedy(err))
	}
	return nil
}

// repeat calls list until the kernel does not interrupt it.
func repeat(list func() error) error {
	var err error
	for range attempts {
		if err = list(); !interrupted(err) {
			return err
		}
	}
	return fmt.Errorf("interrupted %d times: %w", attempts, err)
}

// list makes one listing on a separate socket, so that an aborted listing leaves no messages behind.
func (t *Table) list(ctx context.Context, request []byte, fn func(Entry) error) error {
	s, err := dial(t.netns)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // nothing was written
	stop := context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	var inconsistent bool
	dump := netlink.Message{Header: netlink.Header{Type: msgGet, Flags: netlink.Dump}, Data: request}
	err = s.query(dump, func(m netlink.Message) error {
		inconsistent = inconsistent || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
		e, err := decode(m.Data)
		if err != nil {
			return err
		}
		return fn(e)
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil && inconsistent:
		return unix.EINTR
	}
	return err
}

// Get returns the present state of an entry that was listed before. It returns false if the entry has ended.
func (t *Table) Get(ctx context.Context, e Entry) (now Entry, exists bool, err error) {
	request := netlink.Message{Header: netlink.Header{Type: msgGet}, Data: encodeKey(e)}
	err = t.query(ctx, request, func(m netlink.Message) error {
		now, err = decode(m.Data)
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return Entry{}, false, nil
	}
	if err != nil {
		return Entry{}, false, fmt.Errorf("read conntrack entry %s: %w%s", e, err, remedy(err))
	}
	return now, now.ID == e.ID, nil
}

// Delete deletes one entry. It returns nil if the entry does not exist or was replaced by a newer one.
func (t *Table) Delete(ctx context.Context, e Entry) error {
	request := netlink.Message{Header: netlink.Header{Type: msgDelete, Flags: netlink.Acknowledge}, Data: encodeKey(e)}
	err := t.query(ctx, request, nil)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete conntrack entry %s: %w%s", e, err, remedy(err))
	}
	return nil
}

// query sends a request on the shared socket, and calls fn with each message of the answer.
func (t *Table) query(ctx context.Context, request netlink.Message, fn func(netlink.Message) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.socket.query(request, fn)
}

// interrupted reports whether the kernel interrupted a listing, which is repeated at once.
func interrupted(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS)
}

// refused reports whether the kernel does not support the filter.
func refused(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// remedy returns advice to append to the message of an error, or nothing.
func remedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return ": run as root, or grant CAP_NET_ADMIN"
	case refused(err):
		return ": load it with: modprobe nf_conntrack_netlink, or use a kernel with CONFIG_NF_CT_NETLINK"
	}
	return ""
}
