package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// use calls a function with a map of the programs: the open one, or the pinned one. It does nothing if neither exists.
func (c *Conn) use(name string, do func(*ebpf.Map) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.maps[name]; m != nil {
		return do(m)
	}
	m, done, err := c.find(c.spec.Maps[name])
	if m == nil || err != nil {
		return err
	}
	defer done()
	return do(m)
}

// clock returns the monotonic time in nanoseconds, as programs read it.
func clock() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, err
	}
	return uint64(t.Nano()), nil
}

// Ramp makes the shares of backends grow from a tenth to the whole during a time window. A backend for which the map has no room gets its
// whole share at once. Ramp also deletes the entries of backends whose window has ended.
func (c *Conn) Ramp(backends []Member, window time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(); err != nil {
		return err
	}
	m := c.maps[sockMapNewcomers]
	now, err := clock()
	if err != nil {
		return err
	}
	if err := deleteExpired(m, now); err != nil {
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
	err = c.use(sockMapNewcomers, func(m *ebpf.Map) error {
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

// deleteExpired deletes the entries of backends whose window has ended.
func deleteExpired(m *ebpf.Map, now uint64) error {
	var expired [][]byte
	err := each(m, func(k, v []byte) {
		if binary.NativeEndian.Uint64(v[8:]) <= now {
			expired = append(expired, slices.Clone(k))
		}
	})
	if err != nil {
		return err
	}
	for _, k := range expired {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
