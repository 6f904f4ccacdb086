package bpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Socket is a UDP socket that a program connected to a backend in place of a Service. Since then it may have been closed, or connected elsewhere.
type Socket struct {
	Socket           uint64 // its cookie
	Backend, Service netip.AddrPort
	Pool             Pool
	NetNS            uint64 // the cookie of its network namespace
}

// Sockets returns the UDP sockets that programs have connected.
func (c *Conn) Sockets() (list []Socket, err error) {
	err = c.withMap(sockMapUdpSockets, func(m *ebpf.Map) error {
		return eachInBatches(m, func(k, v []byte) { list = append(list, socketIn(k, v)) })
	})
	if err != nil {
		return nil, fmt.Errorf("read the connected sockets: %w", err)
	}
	return list, nil
}

// socketIn decodes an entry of the map udp_sockets, a struct connected of sock.c.
func socketIn(k, v []byte) Socket {
	return Socket{
		Socket: binary.NativeEndian.Uint64(k), Backend: endpointIn(v), Service: endpointIn(v[20:]),
		Pool: Pool(v[40:56]), NetNS: binary.NativeEndian.Uint64(v[56:]),
	}
}
