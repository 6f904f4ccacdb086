//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"time"

	"golang.org/x/sys/unix"
)

// resourceUse are the resources that this process and its children have used so far.
type resourceUse struct {
	cpu           time.Duration // in user and system mode
	allocs, bytes uint64
}

func usage() (resourceUse, error) {
	var self, children unix.Rusage
	if err := errors.Join(unix.Getrusage(unix.RUSAGE_SELF, &self),
		unix.Getrusage(unix.RUSAGE_CHILDREN, &children)); err != nil {
		return resourceUse{}, fmt.Errorf("read resource usage: %w", err)
	}
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return resourceUse{
		cpu:    time.Duration(self.Utime.Nano() + self.Stime.Nano() + children.Utime.Nano() + children.Stime.Nano()),
		allocs: ms.Mallocs, bytes: ms.TotalAlloc,
	}, nil
}

// heap returns the bytes of reachable heap objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // the second one frees objects of sync.Pool
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return ms.HeapAlloc
}

// profile starts profiles if the option is set; stop writes them.
func profile(o options) (stop func() error, err error) {
	if o.profile == "" {
		return func() error { return nil }, nil
	}
	name := func(kind string) string { return filepath.Join(o.profile, fmt.Sprintf("%s-%d.pprof", kind, o.child)) }
	cpu, err := os.Create(name("cpu"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, err
	}
	return func() error {
		pprof.StopCPUProfile()
		if err := cpu.Close(); err != nil {
			return err
		}
		f, err := os.Create(name("heap"))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		runtime.GC()
		return pprof.WriteHeapProfile(f)
	}, nil
}
