//go:build !linux

package app

import "github.com/sluice-proxy/sluice/internal/drain"

// newDrainOptions returns no Table: only Linux has one.
func newDrainOptions(int) (drain.Options, error) { return drain.Options{}, nil }
