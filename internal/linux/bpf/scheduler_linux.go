package bpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
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

// clock returns the monotonic time in nanoseconds, as programs read it.
func clock() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, err
	}
	return uint64(t.Nano()), nil
}

// Ramp makes the shares of backends grow from a tenth to the whole during a time window. A backend for which the map
// has no room gets its whole share at once. Ramp also deletes the entries of backends whose window has ended.
func (c *Conn) Ramp(backends []Member, window time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(); err != nil {
		return err
	}
	m := c.maps[sockMapNewBackends]
	now, err := clock()
	if err != nil {
		return err
	}
	if err := removeIf(m, func(_, v []byte) bool { return binary.NativeEndian.Uint64(v[8:]) <= now }); err != nil {
		return fmt.Errorf("delete expired entries of slow start: %w", err)
	}
	for _, b := range backends {
		err := put(m, []byte(b.Entry().Data), append(native64(now), native64(now+uint64(window))...))
		if err != nil && !isFull(err) {
			return fmt.Errorf("add backend %s to slow start: %w", b.Backend, err)
		}
	}
	return nil
}

// FullPart is the whole share of a backend in the unit of Parts, and leastPart the smallest part of it.
const (
	FullPart  = 256
	leastPart = 26
)

// Parts returns which part of their share new backends get at this moment. Others get all of it.
func (c *Conn) Parts() (map[Member]uint32, error) {
	now, err := clock()
	if err != nil {
		return nil, err
	}
	parts := map[Member]uint32{}
	err = c.withMap(sockMapNewBackends, func(m *ebpf.Map) error {
		return each(m, func(k, v []byte) {
			part := partAt(now, binary.NativeEndian.Uint64(v), binary.NativeEndian.Uint64(v[8:]))
			if part < FullPart {
				parts[Member{Pool(k[:16]), endpointIn(k[16:])}] = part
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read which backends are new: %w", err)
	}
	return parts, nil
}

// partAt returns the part of a backend whose share grows (share of sock.c).
func partAt(now, from, until uint64) uint32 {
	if now >= until || now < from {
		return FullPart
	}
	return max(leastPart, uint32((now-from)*FullPart/(until-from)))
}
