// Package ipvs reads and changes virtual servers of the kernel's load balancer IPVS. Only
// Load makes the kernel load IPVS; without it there are no servers.
package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Server is a virtual server: a protocol, address and port, or a packet mark.
type Server struct {
	Addr     netip.Addr
	Protocol uint8 // IANA protocol number
	Port     uint16
	Mark     uint32 // not 0: by mark; Addr is then the zero address of the family
}

// String returns the server as "tcp 10.96.0.1:443".
func (s Server) String() string {
	if s.Mark != 0 {
		return fmt.Sprintf("mark %d", s.Mark)
	}
	return nl.ProtocolName(s.Protocol) + " " + netip.AddrPortFrom(s.Addr, s.Port).String()
}

// The marks of Sluice's own virtual servers have this first byte.
const (
	OwnMark     = 0xb5000000
	OwnMarkMask = 0xff000000
)

// Own reports whether the server is for a mark of Sluice's own.
func (s Server) Own() bool { return s.Mark&OwnMarkMask == OwnMark }

// Table is IPVS of one network namespace. A socket is open only during a call.
type Table struct{ netns int }

// New returns access to IPVS in the network namespace of a file descriptor; 0: the current one.
func New(netns int) *Table { return &Table{netns} }

// ErrAbsent is the error of a kernel without IPVS.
var ErrAbsent = errors.New("this kernel has no IPVS")

// Load makes the kernel load IPVS, unless it has; ErrAbsent if it cannot.
func (t *Table) Load(ctx context.Context) error {
	_, err := nl.Execute(ctx, nl.Request{
		NetNS: t.netns, Protocol: unix.NETLINK_GENERIC, Type: unix.GENL_ID_CTRL,
		Header:     []byte{unix.CTRL_CMD_GETFAMILY, version, 0, 0},
		Attributes: nl.AppendString(nil, unix.CTRL_ATTR_FAMILY_NAME, familyName),
	})
	if errors.Is(err, unix.ENOENT) {
		return ErrAbsent
	}
	if err != nil {
		return fmt.Errorf("find IPVS among the families of generic netlink: %w", err)
	}
	return nil
}

// Servers returns all virtual servers, in the kernel's order.
func (t *Table) Servers(ctx context.Context) ([]Server, error) {
	var all []Server
	listed, err := t.List(ctx)
	for _, s := range listed {
		all = append(all, s.Server)
	}
	return all, err
}

// List returns all virtual servers with their settings, in the kernel's order.
func (t *Table) List(ctx context.Context) ([]Listed, error) {
	var all []Listed
	err := t.session(ctx, func(s *session) error {
		answers, err := s.execute(ctx, cmdGetService, netlink.Dump, nil)
		for _, m := range answers {
			one, decodeErr := decodeListed(m)
			err = errors.Join(err, decodeErr)
			all = append(all, one)
		}
		return err
	})
	switch {
	case errors.Is(err, ErrAbsent):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	return all, nil
}

// Destinations returns the destinations of virtual servers, as many lists as servers. A
// server that no longer exists has none.
func (t *Table) Destinations(ctx context.Context, servers ...Server) ([][]Destination, error) {
	all := make([][]Destination, len(servers))
	err := t.session(ctx, func(s *session) (err error) {
		for i, of := range servers {
			if all[i], err = s.destinations(ctx, of); err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

// Connections returns the number of connections through a virtual server, including recently ended ones.
func (t *Table) Connections(ctx context.Context, s Server) (int, error) {
	lists, err := t.Destinations(ctx, s)
	sum := 0
	for _, d := range lists[0] {
		sum += d.Active + d.Inactive
	}
	return sum, err
}

// Delete deletes a virtual server, which ends its connections. It returns nil if the server does not exist.
func (t *Table) Delete(ctx context.Context, s Server) error {
	err := t.Apply(ctx, []Command{{Op: Delete, Server: s}})
	if errors.Is(err, ErrAbsent) {
		return nil
	}
	return err
}

// Apply makes changes in their order. After an error some of the changes that follow may be made.
func (t *Table) Apply(ctx context.Context, changes []Command) error {
	if len(changes) > 1 && t.applyAll(ctx, changes) == nil {
		return nil
	}
	return t.session(ctx, func(s *session) error {
		for _, c := range changes {
			if err := s.apply(ctx, c); err != nil {
				return fmt.Errorf("ipvs %s: %w", c, err)
			}
		}
		return nil
	})
}

// applyAll makes changes of what does not exist, or exists in case of deletions, in few messages.
// After an error any of them may be made.
func (t *Table) applyAll(ctx context.Context, changes []Command) error {
	return t.session(ctx, func(s *session) error {
		requests := make([]nl.Request, len(changes))
		for i, c := range changes {
			requests[i] = s.request(c.commands()[0], 0, c.attributes())
		}
		return s.conn.ExecuteAll(ctx, requests)
	})
}
