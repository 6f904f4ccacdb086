//go:build !linux

package app

import "github.com/sluice-proxy/sluice/internal/drain"

// newWaiter returns no Table: only Linux has one.
func newWaiter(int) (drain.Waiter, error) { return drain.Waiter{}, nil }
