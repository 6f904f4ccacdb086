// Package nfacct makes and reads the kernel's accounting objects: counters with a
// name, which rules count packets with (iptables -m nfacct).
package nfacct

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nfnetlink_acct.h.
const (
	messageNew = 0
	messageGet = 1

	attrName    = 1
	attrPackets = 2
	attrBytes   = 3

	nameMax = 32 // with the zero at its end
)

// answerTimeout bounds the wait for an answer of the kernel, which comes at once.
const answerTimeout = 5 * time.Second

// ErrUnsupported is the error of a kernel without accounting objects (nfnetlink_acct).
var ErrUnsupported = errors.New("the kernel has no nfnetlink_acct")

// Options for New.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one
}

// Count is the value of an object since it was made.
type Count struct{ Packets, Bytes uint64 }

// Objects are the accounting objects of one network namespace. A socket is open
// only during a call.
type Objects struct {
	opts      Options
	subsystem uint16
}

// New returns access to the objects.
func New(opts Options) *Objects {
	return &Objects{opts: opts, subsystem: unix.NFNL_SUBSYS_ACCT}
}

// Available makes the kernel load its module for accounting objects. It returns
// ErrUnsupported if there is none.
func (o *Objects) Available(ctx context.Context) error {
	_, err := o.list(ctx)
	return err
}

// Ensure makes missing objects. Existing ones keep their counts.
func (o *Objects) Ensure(ctx context.Context, names ...string) error {
	for _, name := range names {
		if name == "" || len(name) >= nameMax {
			return fmt.Errorf("accounting object %q: a name has 1 to %d bytes", name, nameMax-1)
		}
		ae := netlink.NewAttributeEncoder()
		ae.String(attrName, name)
		attributes, err := ae.Encode()
		if err != nil {
			return err
		}
		_, err = o.ask(ctx, messageNew, netlink.Acknowledge|netlink.Create|netlink.Excl, attributes)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make accounting object %s: %w", name, err)
		}
	}
	return nil
}

// Read returns the count of an object. It returns fs.ErrNotExist if there is none with
// the name.
func (o *Objects) Read(ctx context.Context, name string) (Count, error) {
	all, err := o.list(ctx)
	if err != nil {
		return Count{}, err
	}
	c, ok := all[name]
	if !ok {
		return Count{}, fmt.Errorf("read accounting object %s: %w", name, fs.ErrNotExist)
	}
	return c, nil
}

// list reads all objects. The kernel marks the answer about a single one as the
// first of many, and sends no more: only a listing has an end.
func (o *Objects) list(ctx context.Context) (map[string]Count, error) {
	replies, err := o.ask(ctx, messageGet, netlink.Dump, nil)
	if err != nil {
		return nil, fmt.Errorf("list accounting objects: %w", err)
	}
	all := map[string]Count{}
	for _, m := range replies {
		name, c, err := object(m.Data)
		if err != nil {
			return nil, fmt.Errorf("read list of accounting objects: %w", err)
		}
		all[name] = c
	}
	return all, nil
}

func (o *Objects) ask(ctx context.Context, message uint16, flags netlink.HeaderFlags, attributes []byte) ([]netlink.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: o.opts.NetNS})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, ErrUnsupported
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, fmt.Errorf("set deadline: %w", err)
	}
	header := []byte{unix.AF_UNSPEC, 0, 0, 0} // struct nfgenmsg
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(o.subsystem<<8 | message), Flags: netlink.Request | flags},
		Data:   append(header, attributes...),
	})
	if errors.Is(err, unix.EINVAL) { // nfnetlink lacks the subsystem
		return nil, ErrUnsupported
	}
	return replies, err
}

// object reads an answer.
func object(b []byte) (name string, c Count, err error) {
	if len(b) < 4 {
		return "", c, fmt.Errorf("an answer of %d bytes", len(b))
	}
	ad, err := netlink.NewAttributeDecoder(b[4:])
	if err != nil {
		return "", c, err
	}
	ad.ByteOrder = binary.BigEndian
	found := map[uint16]bool{}
	for ad.Next() {
		found[ad.Type()] = true
		switch ad.Type() {
		case attrName:
			name = ad.String()
		case attrPackets:
			c.Packets = ad.Uint64()
		case attrBytes:
			c.Bytes = ad.Uint64()
		}
	}
	if err := ad.Err(); err != nil {
		return "", c, err
	}
	if !found[attrName] || !found[attrPackets] || !found[attrBytes] {
		return "", c, errors.New("an answer without name or counters")
	}
	return name, c, nil
}
