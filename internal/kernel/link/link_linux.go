// Package link looks at network interfaces by name, and deletes them.
package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// attempts is how often a listing is tried when it changes meanwhile.
const attempts = 10

// Options say where to look.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one
}

// Links are the interfaces of one network namespace. A socket is open only
// during a call.
type Links struct{ opts Options }

// New returns access to the interfaces.
func New(opts Options) *Links { return &Links{opts: opts} }

// ErrNotFound says that there is no interface of this name.
var ErrNotFound = errors.New("no such interface")

// Addresses returns the addresses on an interface, sorted; ErrNotFound if there
// is none of this name.
func (l *Links) Addresses(ctx context.Context, name string) ([]netip.Addr, error) {
	var out []netip.Addr
	err := l.with(name, func(h *netlink.Handle, link netlink.Link) error {
		list, err := addresses(ctx, h, link)
		for _, a := range list {
			if addr, ok := netip.AddrFromSlice(a.IP); ok {
				out = append(out, addr.Unmap())
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses on %s: %w", name, err)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

func addresses(ctx context.Context, h *netlink.Handle, link netlink.Link) ([]netlink.Addr, error) {
	var list []netlink.Addr
	var err error
	for range attempts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		list, err = h.AddrList(link, netlink.FAMILY_ALL)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// RemoveAddresses removes addresses from an interface. Those that are gone, with
// the interface or without it, are none of its business.
func (l *Links) RemoveAddresses(ctx context.Context, name string, addrs []netip.Addr) error {
	err := l.with(name, func(h *netlink.Handle, link netlink.Link) error {
		for _, a := range addrs {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := h.AddrDel(link, address(a)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("%s: %w", a, err)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("remove addresses from %s: %w", name, err)
	}
	return nil
}

// address is an address without neighbours.
func address(a netip.Addr) *netlink.Addr {
	ip := netlink.NewIPNet(a.AsSlice())
	return &netlink.Addr{IPNet: ip}
}

// Delete deletes an interface; that it is gone already is no error.
func (l *Links) Delete(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := l.with(name, func(h *netlink.Handle, link netlink.Link) error { return h.LinkDel(link) })
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}

// with has fn called with an interface.
func (l *Links) with(name string, fn func(*netlink.Handle, netlink.Link) error) error {
	ns := netns.None()
	if l.opts.NetNS != 0 {
		ns = netns.NsHandle(l.opts.NetNS)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open route netlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if _, absent := errors.AsType[netlink.LinkNotFoundError](err); absent {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("find interface: %w", err)
	}
	return fn(h, link)
}
