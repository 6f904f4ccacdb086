package app

import (
	"github.com/sluice-proxy/sluice/internal/eject/watch"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

// openConnections opens the connections of a network namespace.
func openConnections(netns int) (watch.Table, error) { return conntrack.Open(netns) }
