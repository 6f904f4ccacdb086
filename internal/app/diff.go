package app

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// diffAttempts is how often the kernel is compared until there is no write meanwhile, as a write may cause a difference
// that does not exist. diffPause is the longest wait between two attempts.
const (
	diffAttempts = 10
	diffPause    = 200 * time.Millisecond
)

var errWriting = errors.New("the proxy wrote to the kernel during each of several comparisons; try again")

// diff compares the kernel with the routes. It reads through a connection of its own, and does not delay the loop.
func (d *daemon) diff(ctx context.Context) (plane.Plan, error) {
	reader, done, err := d.plane.Reader(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return differ{d.node.Loop(), reader}.compare(ctx)
}

// maxPlanned is how many Services a plan of all has at most, which takes much memory.
const maxPlanned = 1000

// plan returns the rules that the kernel should have: what would be written if it had none.
func (d *daemon) plan(ctx context.Context) (plane.Plan, error) {
	v, err := d.node.Loop().View(ctx)
	if err != nil {
		return nil, err
	}
	if n := v.Routes.Len(); n > maxPlanned {
		return nil, fmt.Errorf("there are %d Services, and the plan of more than %d takes too much memory", n, maxPlanned)
	}
	return d.o.preview(ctx, d.families, route.Change{Table: v.Routes.Table()})
}

// differ compares the kernel with the routes of a loop.
type differ struct {
	loop interface {
		View(ctx context.Context) (proxy.View, error)
	}
	plane plane.Plane // only reads; no other goroutine uses it
}

func (d differ) compare(ctx context.Context) (plane.Plan, error) {
	for range diffAttempts {
		out, sure, err := d.once(ctx)
		if err != nil || sure {
			return out, err
		}
		if err := rest(ctx, rand.N(diffPause)); err != nil {
			return nil, err
		}
	}
	return nil, errWriting
}

// once compares. sure is false if there is a difference and a write happened meanwhile.
func (d differ) once(ctx context.Context) (plan plane.Plan, sure bool, err error) {
	before, err := d.loop.View(ctx)
	if err != nil {
		return nil, false, err
	}
	if err := d.plane.Refresh(ctx); err != nil {
		return nil, false, err
	}
	after, err := d.loop.View(ctx)
	if err != nil {
		return nil, false, err
	}
	plan = d.plane.Plan(route.Change{Table: after.Routes.Table()})
	if err := plane.Unread(plan); err != nil {
		return nil, false, err
	}
	sure = plan.Steps() == 0 || before.Writes == after.Writes
	return plan, sure, nil
}

// rest waits; the error is that of a context that ended.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err()
}
