package takeover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// maxGone is how many removals State.Gone keeps.
const maxGone = 8

// Controller removes the rules of other modes of Sluice once its own rules are in force, and kube-proxy's rules when
// no kube-proxy runs. It continues to watch for a kube-proxy that starts.
type Controller struct {
	opt      Options
	ready    <-chan struct{}
	platform platform
	pending  []Leftover    // of Options.Others, not removed yet
	clean    bool          // the last search found nothing, and no kube-proxy ran since
	wait     time.Duration // before the next attempt, if the last one did not remove everything
	failure  string        // the error logged last

	mu    sync.Mutex
	state State
}

// New returns a Controller. ready is closed when Sluice's own rules are in force.
func New(o Options, ready <-chan struct{}) *Controller {
	o = o.withDefaults()
	return &Controller{
		opt: o, ready: ready, platform: newPlatform(o), pending: o.Others,
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
		err := errors.Join(c.removeOthers(ctx), c.takeOver(ctx))
		if ctx.Err() != nil {
			return nil
		}
		c.report(err)
		select {
		case <-time.After(c.pause(err)):
		case <-ctx.Done():
			return nil
		}
	}
}

// pause returns the time until the next attempt, which grows while rules remain or another program restores them.
func (c *Controller) pause(err error) time.Duration {
	switch {
	case err == nil && c.clean:
		c.wait = 0
		return c.opt.Rarely
	case err == nil && c.State().KubeProxy != nil:
		c.wait = 0
		return c.opt.Soon
	}
	c.wait = min(max(c.opt.Soon, 2*c.wait), c.opt.Rarely)
	return c.wait
}

// removeOthers removes the rules of other planes of Sluice, each until that succeeded once.
func (c *Controller) removeOthers(ctx context.Context) (err error) {
	var pending []Leftover
	for _, l := range c.pending {
		gone, removeErr := l.Remove(ctx)
		if what := strings.Join(gone, ", "); what != "" { // even if others failed
			c.opt.Log.Info("Removed leftovers of Sluice in another mode", "mode", l.Mode, "removed", what)
			c.update(func(s *State) { s.gone(fmt.Sprintf("removed leftovers of Sluice in mode %s: %s", l.Mode, what)) })
		}
		if removeErr != nil {
			pending = append(pending, l)
			err = errors.Join(err, fmt.Errorf("remove leftovers of Sluice in mode %s: %w", l.Mode, removeErr))
		}
	}
	c.pending = pending
	return err
}

// gone adds a removal.
func (s *State) gone(line string) {
	s.Gone = append(s.Gone, line)
	s.Gone = s.Gone[max(0, len(s.Gone)-maxGone):]
}

// report stores the result of an attempt. It logs a new reason to fail, and when attempts succeed again.
func (c *Controller) report(err error) {
	c.update(func(s *State) { s.Searched, s.Err = true, err })
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == c.failure:
		return
	case err == nil:
		c.opt.Log.Info("Leftovers can be removed again")
	default:
		c.opt.Log.Warn("Cannot remove all leftovers, retrying", "error", text)
	}
	if errors.Is(err, errBeyondReach) {
		c.opt.RecordLeft("Sluice " + text)
	}
	c.failure = text
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
