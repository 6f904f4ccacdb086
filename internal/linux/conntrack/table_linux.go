package conntrack

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
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

// attempts is how often a listing is tried while the kernel resizes the table during it.
const attempts = 5

// listBuffer is the size of a listing's buffer, in bytes: the kernel uses no more (af_netlink.c).
const listBuffer = 1 << 15

// Table is the connection tracking table of one network namespace. Its methods may be called from several goroutines.
type Table struct {
	netns int
	conn  *netlink.Conn // for everything but listings
}

// Open opens the table of a network namespace, by its file descriptor; 0: the current one.
func Open(netns int) (*Table, error) {
	conn, err := dial(netns)
	if err != nil {
		return nil, err
	}
	return &Table{netns: netns, conn: conn}, nil
}

func dial(netns int) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open conntrack netlink: %w", err)
	}
	return conn, nil
}

// Close closes the table.
func (t *Table) Close() error { return t.conn.Close() }

// Each calls fn for every matching entry while it reads the table. It collects nothing, and fn may delete entries. It
// may call fn twice for one entry. It stops at the first error of fn, or when ctx is done. After an error some entries
// may not have been listed; it also returns an error if the kernel resized the table during every attempt.
//
// Kernels from 5.8 on filter the entries. Older ones send all entries of the family, which
// takes longer and gives the same result.
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

// repeat runs list until the table is not resized during it.
func repeat(list func() error) error {
	var err error
	for range attempts {
		if err = list(); !interrupted(err) {
			return err
		}
	}
	return fmt.Errorf("interrupted %d times: %w", attempts, err)
}

// list reads one listing on a separate connection, so that an aborted one leaves no messages behind.
func (t *Table) list(ctx context.Context, request []byte, fn func(Entry) error) error {
	conn, err := dial(t.netns)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	_, err = conn.Send(netlink.Message{
		Header: netlink.Header{Type: msgGet, Flags: netlink.Request | netlink.Dump},
		Data:   request,
	})
	if err != nil {
		return err
	}
	err = receive(conn, fn)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// receive reads a listing with a large buffer, which the kernel fills with some hundred entries at a time. The library
// asks for the size of each message first, so that it gets a few, and starts a goroutine for each question.
func receive(conn *netlink.Conn, fn func(Entry) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	buffer := make([]byte, listBuffer)
	for d := (dump{fn: fn}); !d.done; {
		var n int
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, _, failed = unix.Recvfrom(int(fd), buffer, unix.MSG_DONTWAIT)
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err := cmp.Or(err, failed); err != nil {
			return err
		}
		if err := d.read(buffer[:n]); err != nil {
			return err
		}
	}
	return nil
}

// dump is a listing that is being read.
type dump struct {
	fn           func(Entry) error
	inconsistent bool
	done         bool
}

// read reads messages.
func (d *dump) read(b []byte) error {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return err
	}
	for _, m := range messages {
		d.inconsistent = d.inconsistent || netlink.HeaderFlags(m.Header.Flags)&netlink.DumpInterrupted != 0
		switch m.Header.Type {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			d.done = true
			if len(m.Data) >= 4 {
				if code := int32(binary.NativeEndian.Uint32(m.Data)); code < 0 {
					return unix.Errno(-code)
				}
			}
			if d.inconsistent {
				return unix.EINTR
			}
			return nil
		}
		e, err := decode(m.Data)
		if err == nil {
			err = d.fn(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Get returns the present state of an entry that was listed before. It returns false if the entry has ended.
func (t *Table) Get(ctx context.Context, e Entry) (now Entry, exists bool, err error) {
	if err := ctx.Err(); err != nil {
		return Entry{}, false, err
	}
	err = t.query(msgGet, encodeKey(e), func(m netlink.Message) error {
		if m.Header.Type == msgNew {
			now, err = decode(m.Data)
		}
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
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := t.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: msgDelete, Flags: netlink.Request | netlink.Acknowledge}, Data: encodeKey(e),
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete conntrack entry %s: %w%s", e, err, remedy(err))
	}
	return nil
}

// interrupted reports whether to repeat a listing at once.
func interrupted(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS)
}

// refused reports whether the kernel does not support the filter.
func refused(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// remedy adds advice to an error, if there is any.
func remedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return ": run as root, or grant CAP_NET_ADMIN"
	case refused(err):
		return ": load it with: modprobe nf_conntrack_netlink, or use a kernel with CONFIG_NF_CT_NETLINK"
	}
	return ""
}
