package takeover

import (
	"context"
	"sync"
	"time"
)

// Controller removes the rules of other modes of Sluice once its own rules are in force, and kube-proxy's rules when
// no kube-proxy runs. It continues to watch for a kube-proxy that starts.
type Controller struct {
	opt      Options
	ready    <-chan struct{}
	platform platform
	others   otherModes
	failure  failure
	clean    bool // the last search found nothing, and no kube-proxy ran since
	retry    backoff

	mu    sync.Mutex
	state State
}

// New returns a Controller. ready is closed when Sluice's own rules are in force.
func New(o Options, ready <-chan struct{}) *Controller {
	o = o.withDefaults()
	return &Controller{
		opt: o, ready: ready, platform: newPlatform(o), others: newOtherModes(o),
		failure: failure{
			log: o.Log, began: "Cannot take over from kube-proxy, retrying", ended: "Can take over from kube-proxy again",
		},
		retry: backoff{first: o.Soon, last: o.Rarely},
		state: State{Leftovers: map[Mechanism]int{}, Removed: map[Mechanism]int{}},
	}
}

// Run takes over, and watches for a kube-proxy until the context ends.
func (c *Controller) Run(ctx context.Context) error {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil
	}
	for {
		wait := c.others.remove(ctx)
		c.update(func(s *State) { s.Others = c.others.lines() })
		wait = min(wait, c.reconcile(ctx))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// State returns the progress of the take-over. It is safe for concurrent use.
func (c *Controller) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.clone()
}

func (c *Controller) update(change func(*State)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.state)
}
