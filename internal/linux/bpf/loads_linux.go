package bpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Load is the number of connections to a backend of Services with ByLoad.
type Load struct {
	Counted uint32 // by the last SetLoads
	Since   uint32 // connections that programs have decided since then
}

// Loads returns the loads of all backends that have one.
func (c *Conn) Loads() (map[netip.AddrPort]Load, error) {
	all := map[netip.AddrPort]Load{}
	err := c.withMap(sockMapLoads, func(m *ebpf.Map) error {
		return each(m, func(k, v []byte) {
			at, l := loadIn(k, v)
			all[at] = l
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the loads: %w", err)
	}
	return all, nil
}

// loadIn decodes an entry of the map loads.
func loadIn(k, v []byte) (netip.AddrPort, Load) {
	return endpointIn(k), Load{binary.NativeEndian.Uint32(v), binary.NativeEndian.Uint32(v[4:])}
}

// SetLoads writes counted connections, and removes the loads of all other backends. Before are the loads when the
// count began: connections that programs have decided meanwhile are added, as the count may not have them. If the map
// has no room for a backend, programs choose among the backends of its Services by chance.
func (c *Conn) SetLoads(counted map[netip.AddrPort]uint32, before map[netip.AddrPort]Load) error {
	since := map[netip.AddrPort]uint32{}
	err := c.withMap(sockMapLoads, func(m *ebpf.Map) error {
		err := removeIf(m, func(k, v []byte) bool {
			at, l := loadIn(k, v)
			since[at] = l.Since - min(l.Since, before[at].Since)
			_, wanted := counted[at]
			return !wanted
		})
		if err != nil {
			return err
		}
		for at, n := range counted {
			if err := put(m, endpoint(at), append(native32(n), native32(since[at])...)); err != nil && !isFull(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the loads: %w", err)
	}
	return nil
}
