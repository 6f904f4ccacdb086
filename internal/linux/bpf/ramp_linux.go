package bpf

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

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
