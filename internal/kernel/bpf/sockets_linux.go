package bpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Socket is a socket that a program connected to a backend in place of a Service. Since then it may have been closed, or connected elsewhere.
type Socket struct {
	Socket           uint64 // its cookie
	Backend, Service netip.AddrPort
	Pool             Pool
	NetNS            uint64 // the cookie of its network namespace
}

// Sockets returns the sockets of a protocol that programs have connected: of TCP the newest ones, of UDP all.
func (c *Conn) Sockets(protocol uint8) ([]Socket, error) {
	name := sockMapConnections
	if protocol == unix.IPPROTO_UDP {
		name = sockMapUdpSockets
	}
	var list []Socket
	err := c.withMap(name, func(m *ebpf.Map) error {
		if m.ValueSize() != socketSize {
			return nil // of another version
		}
		return eachInBatches(m, func(_, v []byte) {
			if s := socketIn(v); s.Socket != 0 {
				list = append(list, s)
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", name, err)
	}
	return list, nil
}

// socketSize is the size of a struct connected of sock.c.
const socketSize = 72

func socketIn(v []byte) Socket {
	return Socket{
		Socket: binary.NativeEndian.Uint64(v), Backend: endpointIn(v[8:]), Service: endpointIn(v[28:]),
		Pool: Pool(v[48:64]), NetNS: binary.NativeEndian.Uint64(v[64:]),
	}
}
