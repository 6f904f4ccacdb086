// Package ipvs lists and deletes virtual servers of the kernel's load balancer
// IPVS. It never makes the kernel load IPVS; without it there are no servers.
package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/nl"
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
	name, ok := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}[s.Protocol]
	if !ok {
		name = fmt.Sprintf("protocol %d", s.Protocol)
	}
	return name + " " + netip.AddrPortFrom(s.Addr, s.Port).String()
}

// Table is IPVS of one network namespace. A socket is open only during a call.
type Table struct{ netns int }

// New returns access to IPVS in the network namespace of a file descriptor; 0: the
// current one.
func New(netns int) *Table { return &Table{netns} }

// Servers returns all virtual servers, in the kernel's order.
func (t *Table) Servers(ctx context.Context) ([]Server, error) {
	answers, err := t.execute(ctx, cmdGetService, netlink.Dump, nil)
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	var all []Server
	for _, m := range answers {
		s, decodeErr := decodeServer(m)
		err = errors.Join(err, decodeErr)
		all = append(all, s)
	}
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	return all, nil
}

// Connections returns the number of connections through a virtual server, including
// recently ended ones.
func (t *Table) Connections(ctx context.Context, s Server) (int, error) {
	answers, err := t.execute(ctx, cmdGetDest, netlink.Dump, &s)
	sum := 0
	for _, m := range answers {
		n, decodeErr := decodeConnections(m)
		err = errors.Join(err, decodeErr)
		sum += n
	}
	if err != nil {
		return 0, fmt.Errorf("list real servers of %s: %w", s, err)
	}
	return sum, nil
}

// Delete deletes a virtual server, which ends its connections. It returns nil if the
// server does not exist.
func (t *Table) Delete(ctx context.Context, s Server) error {
	_, err := t.execute(ctx, cmdDelService, netlink.Acknowledge, &s)
	if err == nil || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, errAbsent) {
		return nil
	}
	return fmt.Errorf("delete virtual server %s: %w", s, err)
}

// errAbsent is the error of a kernel without IPVS.
var errAbsent = errors.New("this kernel has no IPVS")

// execute sends a command, about a server unless it is nil.
func (t *Table) execute(ctx context.Context, command byte, flags netlink.HeaderFlags, s *Server) ([]netlink.Message, error) {
	family, err := t.family(ctx)
	if err != nil {
		return nil, err
	}
	r := nl.Request{
		NetNS: t.netns, Protocol: unix.NETLINK_GENERIC, Type: family, Flags: flags, Header: [4]byte{command, version},
	}
	if s != nil {
		r.Encode = s.encode
	}
	return nl.Execute(ctx, r)
}

// family returns the number of IPVS among the families of generic netlink. It lists
// all, because a request by name may make the kernel load the module.
func (t *Table) family(ctx context.Context) (netlink.HeaderType, error) {
	answers, err := nl.Execute(ctx, nl.Request{
		NetNS: t.netns, Protocol: unix.NETLINK_GENERIC, Type: unix.GENL_ID_CTRL, Flags: netlink.Dump,
		Header: [4]byte{unix.CTRL_CMD_GETFAMILY, version},
	})
	for _, m := range answers {
		name, id, decodeErr := decodeFamily(m)
		if err = errors.Join(err, decodeErr); name == "IPVS" && err == nil {
			return id, nil
		}
	}
	if err != nil {
		return 0, fmt.Errorf("list families of generic netlink: %w", err)
	}
	return 0, errAbsent
}
