package bpf

import (
	"errors"
	"maps"
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
