package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Pauses of store before it tries again.
const (
	firstPause = time.Millisecond
	lastPause  = 64 * time.Millisecond
)

// store writes an entry. Since Linux 6.1 the kernel has memory for some entries of a hash ready, and gets more in an
// interrupt. Where that is a thread (PREEMPT_RT), or waits for the timer, it lacks memory for some milliseconds:
// store then tries again, for 127 ms.
func store(m *ebpf.Map, k, v any, flags ebpf.MapUpdateFlags) error {
	return retried(func() error { return m.Update(k, v, flags) })
}

// put is store for entries that may be there.
func put(m *ebpf.Map, k, v any) error { return store(m, k, v, ebpf.UpdateAny) }

func retried(try func() error) error {
	err := try()
	for pause := firstPause; errors.Is(err, unix.ENOMEM) && pause <= lastPause; pause *= 2 {
		time.Sleep(pause)
		err = try()
	}
	return err
}

// remove removes an entry, if there is one.
func remove(m *ebpf.Map, key []byte) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// removeIf removes the entries for which a function returns true.
func removeIf(m *ebpf.Map, is func(k, v []byte) bool) error {
	var keys [][]byte
	err := each(m, func(k, v []byte) {
		if is(k, v) {
			keys = append(keys, slices.Clone(k))
		}
	})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := remove(m, k); err != nil {
			return err
		}
	}
	return nil
}

// set makes a map contain these entries and no others. It returns ErrFull if the map has no room for all.
func set(m *ebpf.Map, want map[string]string) error {
	err := removeIf(m, func(k, _ []byte) bool {
		_, stays := want[string(k)]
		return !stays
	})
	if err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		err := put(m, []byte(k), []byte(want[k]))
		if isFull(err) {
			return ErrFull
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changeTables runs a function that changes the tables. Programs repeat choices without a check while the generation
// stays the same. It is odd during the change, so that they check all, even if this process ends in the middle of it.
// After the change it is a new one.
func (c *Conn) changeTables(change func() error) error {
	m, only := c.maps[sockMapGeneration], native32(0)
	v, err := m.LookupBytes(only)
	if err != nil {
		return fmt.Errorf("read the generation of the maps: %w", err)
	}
	odd := binary.NativeEndian.Uint64(v) | 1
	if odd == 1 { // the map is new: no choice may have its numbers
		odd = rand.Uint64() | 1
	}
	if err := m.Put(only, native64(odd)); err != nil {
		return fmt.Errorf("begin a generation of the maps: %w", err)
	}
	err = change()
	if failed := m.Put(only, native64(odd+1)); failed != nil {
		err = errors.Join(err, fmt.Errorf("end the change of the maps: %w", failed))
	}
	return err
}
