package app

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/eject/watch"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/process"
)

// threadTime returns the CPU time of this thread.
func threadTime() time.Duration { return process.ThreadTime() }

// openConnections opens the connections of a network namespace.
func openConnections(netns int) (watch.Table, error) { return conntrack.Open(netns) }
