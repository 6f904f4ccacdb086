package localnet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second

	// reportPeriod is the least time between two reports of repairs.
	reportPeriod = time.Minute

	// Repairs take at most a fifth of a CPU, however often another program removes the
	// guard: a pause is pauseFactor times as long as the repair. Pauses of maxDelay
	// together are omitted, so that several repairs in a row are made at once.
	pauseFactor = 4
	maxDelay    = 500 * time.Millisecond
)

// Begin makes the guard at once if the parameter is 1, whichever program set it. Call
// it once, before Run; Applied decides later whether NodePorts need the parameter.
func (f *Follower) Begin(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempt(ctx, unknown)
}

// Prepare makes the guard and sets the parameter for a later process that serves
// NodePorts on 127.0.0.1.
func (f *Follower) Prepare(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.establish(ctx, needed)
	return err
}

// Guard makes the guard if the parameter is 1, for a later process that does not
// serve NodePorts on 127.0.0.1.
func (f *Follower) Guard(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.establish(ctx, unknown)
	return err
}

// Remove resets the parameter to 0 if Sluice set it, and removes the guard unless the
// parameter stays 1. It returns a line for each object removed or kept.
func (f *Follower) Remove(ctx context.Context) (lines []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, err := f.read(ctx, unknown)
	if err != nil {
		return nil, err
	}
	_, err = f.establish(ctx, notNeeded)
	after, lookErr := f.read(ctx, unknown)
	if before.all && !after.all && lookErr == nil {
		lines = append(lines, "removed sluice: route_localnet, net.ipv4.conf.all.route_localnet is 0 again")
	}
	if before.guard != absent && after.guard == absent && lookErr == nil {
		lines = append(lines, fmt.Sprintf("removed sluice: table %s", Table()))
	}
	if isLeftOn(err) {
		return append(lines, "kept sluice: "+err.Error()), lookErr
	}
	return lines, errors.Join(err, lookErr)
}

// Run repairs the guard whenever another program changed it, and retries failed
// actions, until the context ends. It returns nil then.
func (f *Follower) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	edits := make(chan nft.Edit, 1)
	group.Go(func() error { return f.watch(ctx, edits) })
	group.Go(func() error { return f.repair(ctx, edits) })
	return group.Wait()
}

// watch sends edits of other programs once there is a guard. An edit that is not received
// yet stands for all later ones.
func (f *Follower) watch(ctx context.Context, edits chan<- nft.Edit) error {
	select {
	case <-ctx.Done():
		return nil
	case <-f.guarded:
	}
	report := func(e nft.Edit) {
		select {
		case edits <- e:
		default:
		}
	}
	for ctx.Err() == nil {
		subscribed := func() { report(nft.Edit{Lost: true}) } // for edits before the subscription
		err := f.opt.Kernel.Watch(ctx, []nft.Table{Table()}, subscribed, report)
		if err != nil && ctx.Err() == nil {
			f.opt.Report(fmt.Errorf("watch table %s, trying again: %w", Table(), err))
			pause(ctx, lastRetry)
		}
	}
	return nil
}

// repair repairs the guard after each edit, and retries after each failure.
func (f *Follower) repair(ctx context.Context, edits <-chan nft.Edit) error {
	wait := firstRetry
	var free time.Time // when all pauses are over
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case e := <-edits:
			began := time.Now()
			f.restore(ctx, e)
			free = later(free, began).Add(pauseFactor * time.Since(began))
			pause(ctx, time.Until(free)-maxDelay)
		case <-f.retry:
			pause(ctx, wait)
			wait = min(2*wait, lastRetry)
			if f.again(ctx) {
				wait = firstRetry
			}
		}
	}
	return nil
}

// restore repairs the guard and reports which program changed it. It removes nothing:
// the edit may come from another Sluice that prepares this node for its own start.
func (f *Follower) restore(ctx context.Context, e nft.Edit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.need
	if n == notNeeded {
		n = unknown
	}
	if !f.attempt(ctx, n) || time.Since(f.restored) < reportPeriod {
		return
	}
	f.restored = time.Now()
	by := e.By
	if by == "" {
		by = "name unknown"
	}
	f.opt.Report(fmt.Errorf("another program (%s) changed table %s, which keeps neighbours out of 127.0.0.0/8; it was restored", by, Table()))
}

// again tries again and reports whether it worked.
func (f *Follower) again(ctx context.Context) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempt(ctx, f.need)
	return len(f.retry) == 0
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
