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

// use calls a function with a map of the programs: the open one, or the pinned one; with neither it does nothing.
func (c *Conn) use(name string, do func(*ebpf.Map) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.maps[name]; m != nil {
		return do(m)
	}
	m, done, err := c.lookAt(c.spec.Maps[name])
	if m == nil || err != nil {
		return err
	}
	defer done()
	return do(m)
}

// clock returns the time that programs read, in nanoseconds.
func clock() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, err
	}
	return uint64(t.Nano()), nil
}

// Ramp gives a backend a share that grows from a tenth to all of it. Without room for it the backend gets its whole share. Backends
// whose time is over are forgotten.
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
	if err := grown(m, now); err != nil {
		return fmt.Errorf("forget backends that were new: %w", err)
	}
	for _, b := range backends {
		err := put(m, []byte(b.Entry().Data), append(native64(now), native64(now+uint64(window))...))
		if err != nil && !isFull(err) {
			return fmt.Errorf("note that %s is new: %w", b.Backend, err)
		}
	}
	return nil
}

// grown removes backends whose time is over.
func grown(m *ebpf.Map, now uint64) error {
	var over [][]byte
	err := each(m, func(k, v []byte) {
		if binary.NativeEndian.Uint64(v[8:]) <= now {
			over = append(over, slices.Clone(k))
		}
	})
	if err != nil {
		return err
	}
	for _, k := range over {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
