//go:build !linux

package takeover

import (
	"context"
	"sync"
	"time"
)

// Controller removes what other modes of Sluice left.
type Controller struct {
	ready  <-chan struct{}
	others otherModes

	mu    sync.Mutex
	state State
}

// New returns a Controller. ready is closed when Services are served.
func New(o Options, ready <-chan struct{}) *Controller {
	return &Controller{ready: ready, others: newOtherModes(o.withDefaults())}
}

// Run removes what other modes left, and waits for the context to end.
func (c *Controller) Run(ctx context.Context) error {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil
	}
	for {
		wait := c.others.remove(ctx)
		c.mu.Lock()
		c.state = State{Searched: true, Others: c.others.lines()}
		c.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// State returns what was removed. It is safe for concurrent use.
func (c *Controller) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.clone()
}

// Cleanup finds nothing.
func Cleanup(context.Context, Options) (Account, error) { return Account{}, nil }

// Search finds nothing.
func Search(context.Context, Options) (Found, error) { return Found{}, nil }
