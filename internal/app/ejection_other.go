//go:build !linux

package app

import (
	"errors"
	"time"

	"github.com/sluice-proxy/sluice/internal/eject/watch"
)

func threadTime() time.Duration { return 0 }

// openConnections returns an error: only Linux has a table of connections.
func openConnections(int) (watch.Table, error) { return nil, errors.ErrUnsupported }
