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
)

// ErrUnsupported is the error of a kernel without accounting objects (nfnetlink_acct).
var ErrUnsupported = errors.New("the kernel has no nfnetlink_acct")

// Objects are the accounting objects of one network namespace. A socket is open only during a call.
type Objects struct {
	netns     int
	subsystem uint16
}

// New returns access to the objects of a network namespace, by its file descriptor; 0: the current one.
func New(netns int) *Objects { return &Objects{netns: netns, subsystem: unix.NFNL_SUBSYS_ACCT} }

// Available makes the kernel load its module for accounting objects. It returns ErrUnsupported if there is none.
func (o *Objects) Available(ctx context.Context) error {
	_, err := o.list(ctx)
	return err
}

// Ensure creates missing objects, whose names have at most 31 bytes. Existing ones keep their counts.
func (o *Objects) Ensure(ctx context.Context, names ...string) error {
	for _, name := range names {
		const flags = netlink.Acknowledge | netlink.Create | netlink.Excl
		_, err := o.execute(ctx, messageNew, flags, nl.AppendString(nil, attrName, name))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("create accounting object %s: %w", name, err)
		}
	}
	return nil
}

// Read returns how many packets an object has counted. It returns fs.ErrNotExist if there is none with the name.
func (o *Objects) Read(ctx context.Context, name string) (uint64, error) {
	all, err := o.list(ctx)
	if err != nil {
		return 0, err
	}
	packets, ok := all[name]
	if !ok {
		return 0, fmt.Errorf("read accounting object %s: %w", name, fs.ErrNotExist)
	}
	return packets, nil
}

// list returns the packets of all objects. A request for a single one does not work: the
// kernel marks the reply as the first of several, but sends no end.
func (o *Objects) list(ctx context.Context) (map[string]uint64, error) {
	answers, err := o.execute(ctx, messageGet, netlink.Dump, nil)
	if err != nil {
		return nil, fmt.Errorf("list accounting objects: %w", err)
	}
	all := map[string]uint64{}
	for _, m := range answers {
		name, packets := "", uint64(0)
		err := nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case attrName:
				name = ad.String()
			case attrPackets:
				packets = ad.Uint64()
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list accounting objects: %w", err)
		}
		all[name] = packets
	}
	return all, nil
}

func (o *Objects) execute(
	ctx context.Context, message netlink.HeaderType, flags netlink.HeaderFlags, attributes []byte,
) ([]netlink.Message, error) {
	answers, err := nl.Execute(ctx, nl.Request{
		NetNS: o.netns, Protocol: unix.NETLINK_NETFILTER, Type: netlink.HeaderType(o.subsystem)<<8 | message,
		Flags: flags, Attributes: attributes,
	})
	// The kernel lacks nfnetlink, or its subsystem.
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return nil, ErrUnsupported
	}
	return answers, err
}
