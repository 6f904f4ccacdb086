package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Socket is a UDP socket that a program connected to a backend in place of a Service. Since then it may have been
// closed, or connected elsewhere.
type Socket struct {
	Socket           uint64 // its cookie
	Backend, Service netip.AddrPort
	Pool             Pool
	NetNS            uint64 // the cookie of its network namespace
}

// Sockets returns the UDP sockets that programs have connected.
func (c *Conn) Sockets() (list []Socket, err error) {
	err = c.withMap(sockMapUDPSockets, func(m *ebpf.Map) error {
		return inBatches(m, func(k uint64, v [64]byte) { list = append(list, socketIn(k, v[:])) })
	})
	if err != nil {
		return nil, fmt.Errorf("read the connected sockets: %w", err)
	}
	return list, nil
}

// inBatches calls a function with the entries of a hash that programs change meanwhile, which would end an iteration.
func inBatches[K, V any](m *ebpf.Map, do func(K, V)) error {
	const batch = 8192 // no bucket of a hash is as large
	keys, values := make([]K, batch), make([]V, batch)
	for at := new(ebpf.MapBatchCursor); ; {
		n, err := m.BatchLookup(at, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i := range n {
			do(keys[i], values[i])
		}
		if err != nil {
			return nil
		}
	}
}

// socketIn decodes an entry of the map udp_sockets, a struct connected of sock.c.
func socketIn(cookie uint64, v []byte) Socket {
	return Socket{
		Socket: cookie, Backend: endpointIn(v), Service: endpointIn(v[20:]),
		Pool: Pool(v[40:56]), NetNS: binary.NativeEndian.Uint64(v[56:]),
	}
}
