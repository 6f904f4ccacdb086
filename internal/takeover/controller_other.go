//go:build !linux

package takeover

import (
	"context"
	"math"
	"time"
)

// platform is empty: kube-proxy leaves no rules on this system.
type platform struct{}

func newPlatform(Options) platform { return platform{} }

// reconcile finds nothing.
func (c *Controller) reconcile(context.Context) time.Duration {
	c.update(func(s *State) { s.Searched = true })
	return math.MaxInt64
}

// Cleanup finds nothing.
func Cleanup(context.Context, Options) (Account, error) { return Account{}, nil }

// Search finds nothing.
func Search(context.Context, Options) (Found, error) { return Found{}, nil }
