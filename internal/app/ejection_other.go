//go:build !linux

package app

import "github.com/sluice-proxy/sluice/internal/eject/watch"

// openConnections returns nil: only Linux has a table of connections.
func openConnections(int) (watch.Table, error) { return nil, nil }
