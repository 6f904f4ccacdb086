package app

import (
	"context"
	"errors"
	"maps"
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
	c := d.reload.State().InForce
	kernel, err := d.kernel.again(ctx)
	if err != nil {
		return inspect.Difference{}, err
	}
	defer func() { _ = kernel.Close() }() // it was only read from
	return differ{d.node.Loop(), kernel.plane(c, nil)}.compare(ctx)
}

// differ compares the kernel with what a loop wants there.
type differ struct {
	loop interface {
		Do(ctx context.Context, look func(proxy.View)) error
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
	before, err := d.writes(ctx)
	if err != nil {
		return out, false, err
	}
	if err := d.plane.Refresh(ctx); err != nil {
		return out, false, err
	}
	table, after, err := d.table(ctx)
	if err != nil {
		return out, false, err
	}
	plan := d.plane.Plan(route.Change{Table: table})
	return inspect.Difference{Steps: plan.Steps(), Text: plan.String()}, plan.Steps() == 0 || before == after, nil
}

func (d differ) writes(ctx context.Context) (n uint64, err error) {
	err = d.loop.Do(ctx, func(v proxy.View) { n = v.Writes })
	return n, err
}

// table copies what should be. Services in it are shared: they never change.
func (d differ) table(ctx context.Context) (t *route.Table, writes uint64, err error) {
	err = d.loop.Do(ctx, func(v proxy.View) {
		t, writes = &route.Table{Host: v.Table.Host, Services: maps.Clone(v.Table.Services)}, v.Writes
	})
	return t, writes, err
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
