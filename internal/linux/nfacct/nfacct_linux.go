// Package nfacct creates and reads the kernel's accounting objects: named counters, with
// which rules count packets (iptables -m nfacct).
package nfacct

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Constants of linux/netfilter/nfnetlink_acct.h.
const (
	messageNew = 0
	messageGet = 1

	attrName    = 1
	attrPackets = 2
	attrBytes   = 3

	nameMax = 32 // with the zero at its end
)

// ErrUnsupported is the error of a kernel without accounting objects (nfnetlink_acct).
var ErrUnsupported = errors.New("the kernel has no nfnetlink_acct")

// Options for New.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one
}

// Count is the value of an object since its creation.
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

// Ensure creates missing objects. Existing ones keep their counts.
func (o *Objects) Ensure(ctx context.Context, names ...string) error {
	for _, name := range names {
		if name == "" || len(name) >= nameMax {
			return fmt.Errorf("accounting object %q: a name has 1 to %d bytes", name, nameMax-1)
		}
		const flags = netlink.Acknowledge | netlink.Create | netlink.Excl
		_, err := o.execute(ctx, messageNew, flags, func(ae *netlink.AttributeEncoder) { ae.String(attrName, name) })
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("create accounting object %s: %w", name, err)
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

// list reads all objects. A request for a single one does not work: the kernel marks the
// reply as the first of several, but sends no end.
func (o *Objects) list(ctx context.Context) (map[string]Count, error) {
	answers, err := o.execute(ctx, messageGet, netlink.Dump, nil)
	if err != nil {
		return nil, fmt.Errorf("list accounting objects: %w", err)
	}
	all := map[string]Count{}
	for _, m := range answers {
		name, c, err := decode(m)
		if err != nil {
			return nil, fmt.Errorf("list accounting objects: %w", err)
		}
		all[name] = c
	}
	return all, nil
}

func (o *Objects) execute(
	ctx context.Context, message netlink.HeaderType, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder),
) ([]netlink.Message, error) {
	answers, err := nl.Execute(ctx, nl.Request{
		NetNS: o.opts.NetNS, Protocol: unix.NETLINK_NETFILTER, Type: netlink.HeaderType(o.subsystem)<<8 | message,
		Flags: flags, Encode: encode,
	})
	// The kernel lacks nfnetlink, or its subsystem.
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return nil, ErrUnsupported
	}
	return answers, err
}

// decode decodes one message of a listing.
func decode(m netlink.Message) (name string, c Count, err error) {
	found := map[uint16]bool{}
	err = nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		found[ad.Type()] = true
		switch ad.Type() {
		case attrName:
			name = ad.String()
		case attrPackets:
			c.Packets = ad.Uint64()
		case attrBytes:
			c.Bytes = ad.Uint64()
		}
	})
	if err == nil && (!found[attrName] || !found[attrPackets] || !found[attrBytes]) {
		err = errors.New("an accounting object without name or counters")
	}
	if err != nil {
		return "", Count{}, err
	}
	return name, c, nil
}
