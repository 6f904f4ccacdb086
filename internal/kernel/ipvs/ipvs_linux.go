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
)

// Options for New.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one
}

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
type Table struct{ opts Options }

// New returns access to IPVS.
func New(opts Options) *Table { return &Table{opts: opts} }

// Servers returns all virtual servers, in the kernel's order.
func (t *Table) Servers(ctx context.Context) ([]Server, error) {
	replies, err := t.ask(ctx, cmdGetService, netlink.Dump, nil)
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	var out []Server
	for _, m := range replies {
		s, err := decodeServer(m.Data)
		if err != nil {
			return nil, fmt.Errorf("read list of virtual servers: %w", err)
		}
		out = append(out, s)
	}
	return out, nil
}

// Connections returns the number of connections through a virtual server, including
// recently ended ones.
func (t *Table) Connections(ctx context.Context, s Server) (int, error) {
	replies, err := t.ask(ctx, cmdGetDest, netlink.Dump, encodeServer(s))
	if err != nil {
		return 0, fmt.Errorf("list real servers of %s: %w", s, err)
	}
	sum := 0
	for _, m := range replies {
		n, err := decodeConnections(m.Data)
		if err != nil {
			return 0, fmt.Errorf("read list of real servers of %s: %w", s, err)
		}
		sum += n
	}
	return sum, nil
}

// Delete deletes a virtual server, which ends its connections. It returns nil if the
// server does not exist.
func (t *Table) Delete(ctx context.Context, s Server) error {
	_, err := t.ask(ctx, cmdDelService, netlink.Acknowledge, encodeServer(s))
	if err == nil || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, errAbsent) {
		return nil
	}
	return fmt.Errorf("delete virtual server %s: %w", s, err)
}

// errAbsent is the error of a kernel without IPVS.
var errAbsent = errors.New("this kernel has no IPVS")

// filler adds attributes.
type filler func(*netlink.AttributeEncoder) error

func (t *Table) ask(ctx context.Context, command byte, flags netlink.HeaderFlags, fill filler) ([]netlink.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_GENERIC, &netlink.Config{NetNS: t.opts.NetNS})
	if err != nil {
		return nil, fmt.Errorf("open generic netlink socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	family, err := lookUp(conn)
	if err != nil {
		return nil, err
	}
	ae := netlink.NewAttributeEncoder()
	if fill != nil {
		ae.Nested(attrService, fill)
	}
	attributes, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	return conn.Execute(message(family, command, flags, attributes))
}

// lookUp finds the number of IPVS among the families of generic netlink. It lists all,
// because a request by name may make the kernel load the module.
func lookUp(conn *netlink.Conn) (uint16, error) {
	replies, err := conn.Execute(message(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, netlink.Dump, nil))
	if err != nil {
		return 0, fmt.Errorf("list families of generic netlink: %w", err)
	}
	for _, m := range replies {
		name, id, err := decodeFamily(m.Data)
		if err != nil {
			return 0, fmt.Errorf("read families of generic netlink: %w", err)
		}
		if name == "IPVS" {
			return id, nil
		}
	}
	return 0, errAbsent
}

func message(family uint16, command byte, flags netlink.HeaderFlags, attributes []byte) netlink.Message {
	header := []byte{command, 1, 0, 0} // struct genlmsghdr
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(family), Flags: netlink.Request | flags},
		Data:   append(header, attributes...),
	}
}

// encodeServer encodes the identity of a server.
func encodeServer(s Server) filler {
	return func(ae *netlink.AttributeEncoder) error {
		ae.Uint16(svcFamily, family(s.Addr))
		if s.Mark != 0 {
			ae.Uint32(svcMark, s.Mark)
			return nil
		}
		addr := make([]byte, 16) // of either family
		copy(addr, s.Addr.AsSlice())
		ae.Uint16(svcProtocol, uint16(s.Protocol))
		ae.Bytes(svcAddr, addr)
		ae.Bytes(svcPort, []byte{byte(s.Port >> 8), byte(s.Port)})
		return nil
	}
}

func family(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
