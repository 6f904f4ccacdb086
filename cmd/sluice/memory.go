package main

import (
	"os"
	"runtime/debug"
	"sync"

	"github.com/sluice-proxy/sluice/internal/proxy"
)

// How much the heap may grow between two collections, in percent. The first
// load makes the peak, and costs a little more processor time for a lower one.
const (
	loadingPercent = 30
	steadyPercent  = 50
)

// saveMemory keeps the memory of the first load small. It returns what is to be
// told of attempts to write: after the first that succeeds, what the load needed
// goes back to the kernel. GOGC in the environment wins.
func saveMemory() func(proxy.Sync) {
	if _, said := os.LookupEnv("GOGC"); said {
		return nil
	}
	debug.SetGCPercent(loadingPercent)
	loaded := sync.OnceFunc(func() {
		debug.SetGCPercent(steadyPercent)
		go debug.FreeOSMemory() // takes a while; the next change does not wait
	})
	return func(s proxy.Sync) {
		if s.Err == nil {
			loaded()
		}
	}
}
