package bpf

import (
	"encoding/binary"
	"fmt"
	"time"

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
