package app

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// diffTries is how often the kernel is read to find a moment without a write: a
// difference that was seen across one may be none. diffPause is the longest
// wait before the next.
const (
	diffTries = 10
	diffPause = 200 * time.Millisecond
)

// errWriting says that no such moment was found.
var errWriting = errors.New("the proxy keeps writing to the kernel, so that no two looks at it are of one moment; ask again")

// diff compares the kernel as it is with what should be. It reads through a
// connection of its own, and the loop does not wait for it.
func (d *daemon) diff(ctx context.Context) (inspect.Difference, error) {
	reader, done, err := d.plane.Reader(ctx)
	if err != nil {
		return inspect.Difference{}, err
	}
	defer done()
	return differ{d.node.Loop(), reader}.compare(ctx)
}

// differ compares the kernel with what a loop wants there.
type differ struct {
	loop interface {
		View(ctx context.Context) (proxy.View, error)
	}
	plane plane.Plane // reads; nobody else uses it
}

func (d differ) compare(ctx context.Context) (inspect.Difference, error) {
	for range diffTries {
		out, sure, err := d.once(ctx)
		if err != nil || sure {
			return out, err
		}
		if err := rest(ctx, rand.N(diffPause)); err != nil {
			return inspect.Difference{}, err
		}
	}
	return inspect.Difference{}, errWriting
}

// once compares. It is not sure of a difference if there was a write meanwhile.
func (d differ) once(ctx context.Context) (out inspect.Difference, sure bool, err error) {
	before, err := d.loop.View(ctx)
	if err != nil {
		return out, false, err
	}
	if err := d.plane.Refresh(ctx); err != nil {
		return out, false, err
	}
	after, err := d.loop.View(ctx)
	if err != nil {
		return out, false, err
	}
	plan := d.plane.Plan(route.Change{Table: after.Routes.Table()})
	sure = plan.Steps() == 0 || before.Writes == after.Writes
	return inspect.Difference{Steps: plan.Steps(), Text: plan.String()}, sure, nil
}

// rest waits; the error is that of a context that ended.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
