package bpf

import (
	"errors"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Pauses of store before it tries again.
const (
	firstPause = time.Millisecond
	lastPause  = 64 * time.Millisecond
)

// store writes an entry. Since Linux 6.1 the kernel has memory for some entries of a hash ready, and gets more in an interrupt. Where that is a
// thread (PREEMPT_RT), or waits for the timer, it lacks memory for some milliseconds: store then tries again, for 127 ms.
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
