// Package ipset lists and destroys sets of the kernel's ipset subsystem.
package ipset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/nl"
)

// Of linux/netfilter/ipset/ip_set.h.
const (
	protocol = 6

	cmdDestroy = 3
	cmdList    = 7

	attrProtocol = 1
	attrSetName  = 2
	attrFlags    = 6

	flagNamesOnly = 2

	errBusy = syscall.Errno(4100)
)

// Sets are the sets of one network namespace. A socket is open only during a call.
type Sets struct {
	netns   int
	modules string // folder with the kernel's modules
}

// New returns access to the sets of the network namespace of a file descriptor; 0: the
// current one.
func New(netns int) *Sets { return &Sets{netns: netns, modules: "/sys/module"} }

// Names returns the names of the sets, sorted. It does not make the kernel load the
// ipset module; without it there are no sets.
func (s *Sets) Names(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !s.loaded() {
		return nil, nil
	}
	answers, err := s.execute(ctx, cmdList, netlink.Dump, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(attrFlags|netlink.NetByteOrder, binary.BigEndian.AppendUint32(nil, flagNamesOnly))
	})
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	var names []string
	for _, m := range answers {
		name, err := setName(m)
		if err != nil {
			return nil, fmt.Errorf("list ipsets: %w", err)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Destroy destroys a set. It returns nil if the set does not exist, and an error if
// rules refer to it.
func (s *Sets) Destroy(ctx context.Context, name string) error {
	_, err := s.execute(ctx, cmdDestroy, netlink.Acknowledge, func(ae *netlink.AttributeEncoder) {
		ae.String(attrSetName, name)
	})
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, errBusy):
		err = errors.New("rules refer to it")
	}
	return fmt.Errorf("destroy ipset %s: %w", name, err)
}

// loaded reports whether the kernel has loaded ipset; true if that is unknown.
func (s *Sets) loaded() bool {
	if _, err := os.Stat(s.modules); err != nil {
		return true
	}
	_, err := os.Stat(s.modules + "/ip_set")
	return !errors.Is(err, fs.ErrNotExist)
}

func (s *Sets) execute(ctx context.Context, command netlink.HeaderType, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]netlink.Message, error) {
	return nl.Execute(ctx, nl.Request{
		NetNS: s.netns, Protocol: unix.NETLINK_NETFILTER, Type: unix.NFNL_SUBSYS_IPSET<<8 | command, Flags: flags,
		Header: [4]byte{unix.AF_INET},
		Encode: func(ae *netlink.AttributeEncoder) {
			ae.Uint8(attrProtocol, protocol)
			encode(ae)
		},
	})
}

// setName decodes one message of a listing.
func setName(m netlink.Message) (name string, err error) {
	err = nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == attrSetName {
			name = ad.String()
		}
	})
	return name, err
}
