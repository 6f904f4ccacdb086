// Package ipset lists and destroys sets of the kernel's ipset subsystem.
package ipset

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Of linux/netfilter/ipset/ip_set.h.
const (
	protocol = 6

	cmdDestroy = unix.NFNL_SUBSYS_IPSET<<8 | 3
	cmdList    = unix.NFNL_SUBSYS_IPSET<<8 | 7

	attrProtocol = 1
	attrSetName  = 2
	attrFlags    = 6

	flagNamesOnly = 2

	errBusy = 4100
)

// Options for New.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one

	// Modules is the folder with the kernel's modules; "": /sys/module.
	Modules string
}

// Sets are the sets of one network namespace. A socket is open only during a call.
type Sets struct{ opts Options }

// New returns access to the sets.
func New(opts Options) *Sets {
	if opts.Modules == "" {
		opts.Modules = "/sys/module"
	}
	return &Sets{opts: opts}
}

// Names returns the names of the sets, sorted. It does not make the kernel load the
// ipset module; without it there are no sets.
func (s *Sets) Names(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !s.loaded() {
		return nil, nil
	}
	ae := netlink.NewAttributeEncoder()
	ae.Uint8(attrProtocol, protocol)
	ae.Do(attrFlags|netlink.NetByteOrder, func() ([]byte, error) { return []byte{0, 0, 0, flagNamesOnly}, nil })
	replies, err := s.ask(cmdList, netlink.Dump, ae)
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	var names []string
	for _, m := range replies {
		name, err := setName(m.Data)
		if err != nil {
			return nil, fmt.Errorf("read list of ipsets: %w", err)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Destroy destroys a set. It returns nil if the set does not exist, and an error if
// rules refer to it.
func (s *Sets) Destroy(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ae := netlink.NewAttributeEncoder()
	ae.Uint8(attrProtocol, protocol)
	ae.String(attrSetName, name)
	_, err := s.ask(cmdDestroy, netlink.Acknowledge, ae)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, syscall.Errno(errBusy)) {
		err = errors.New("rules refer to it")
	}
	return fmt.Errorf("destroy ipset %s: %w", name, err)
}

// loaded reports whether the kernel has loaded ipset; true if that is unknown.
func (s *Sets) loaded() bool {
	if _, err := os.Stat(s.opts.Modules); err != nil {
		return true
	}
	_, err := os.Stat(s.opts.Modules + "/ip_set")
	return !errors.Is(err, fs.ErrNotExist)
}

func (s *Sets) ask(command uint16, flags netlink.HeaderFlags, ae *netlink.AttributeEncoder) ([]netlink.Message, error) {
	attributes, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: s.opts.NetNS})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	header := []byte{unix.AF_INET, 0, 0, 0} // struct nfgenmsg
	return conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(command), Flags: netlink.Request | flags},
		Data:   append(header, attributes...),
	})
}

// setName reads an answer to a listing.
func setName(b []byte) (string, error) {
	if len(b) < 4 {
		return "", fmt.Errorf("an answer of %d bytes", len(b))
	}
	ad, err := netlink.NewAttributeDecoder(b[4:])
	if err != nil {
		return "", err
	}
	name := ""
	for ad.Next() {
		if ad.Type() == attrSetName {
			name = ad.String()
		}
	}
	return name, ad.Err()
}
