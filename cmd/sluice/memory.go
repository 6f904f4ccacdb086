package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/proxy"
)

// How much the heap may grow between two collections. The first load makes the peak: of a small heap a fixed amount may
// be garbage, as many collections cost processor time, of a large one a part.
const (
	garbage       = 9 << 20 // bytes
	leastPercent  = 22
	mostPercent   = 400
	steadyPercent = 50 // after the first load
	lookPeriod    = 10 * time.Millisecond
)

// saveMemory keeps the memory of the first load small. The function that it returns is
// called after each attempt to write; after the first successful one the memory of the load
// is returned to the kernel. It returns nil if the environment sets GOGC.
func saveMemory() func(proxy.Sync) {
	if _, said := os.LookupEnv("GOGC"); said {
		return nil
	}
	debug.SetGCPercent(mostPercent)
	end := make(chan struct{})
	go allow(end)
	loaded := sync.OnceFunc(func() { close(end) })
	return func(s proxy.Sync) {
		if s.Err == nil {
			loaded()
		}
	}
}

// allow adapts the collector to the heap until everything is loaded.
func allow(end <-chan struct{}) {
	look := time.NewTicker(lookPeriod)
	defer look.Stop()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	now := mostPercent
	for {
		select {
		case <-end:
			debug.FreeOSMemory() // takes a while; the next change does not wait
			debug.SetGCPercent(steadyPercent)
			return
		case <-look.C:
		}
		metrics.Read(live)
		if p := percent(live[0].Value.Uint64()); p != now {
			debug.SetGCPercent(p)
			now = p
		}
	}
}

// percent is how much a heap of so many bytes may grow.
func percent(live uint64) int {
	return int(min(mostPercent, max(leastPercent, garbage*100/max(live, 1))))
}
