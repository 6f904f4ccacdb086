package localnet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second

	// reportPeriod is the least time between two reports of repairs.
	reportPeriod = time.Minute

	// Repairs take a fifth of a CPU, however often another program removes the guard:
	// pauses are restPerWork times as long as the repairs. Up to maxDebt of pauses may
	// be owed, so that a few repairs in a row are made at once.
	restPerWork = 4
	maxDebt     = 500 * time.Millisecond
)

// Begin makes the guard at once if the parameter is 1, whichever program set it. Call
// it once, before Run; Applied decides later whether NodePorts need the parameter.
func (k *Keeper) Begin(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.settle(ctx, unknown)
}

// Prepare makes the guard and sets the parameter for a later process that serves
// NodePorts on 127.0.0.1.
func (k *Keeper) Prepare(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.bring(ctx, serving)
	return err
}

// Guard makes the guard if the parameter is 1, for a later process that does not
// serve NodePorts on 127.0.0.1.
func (k *Keeper) Guard(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.bring(ctx, unknown)
	return err
}

// Remove resets the parameter to 0 if Sluice set it, and removes the guard unless the
// parameter stays 1. It returns a line for each object removed or kept.
func (k *Keeper) Remove(ctx context.Context) (lines []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, err := k.find(ctx, unknown)
	if err != nil {
		return nil, err
	}
	_, err = k.bring(ctx, unused)
	after, lookErr := k.find(ctx, unknown)
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
func (k *Keeper) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	edits := make(chan nft.Edit, 1)
	group.Go(func() error { return k.watch(ctx, edits) })
	group.Go(func() error { return k.repair(ctx, edits) })
	return group.Wait()
}

// watch sends edits of other programs, from the time there is a guard. One that waits
// stands for all later ones.
func (k *Keeper) watch(ctx context.Context, edits chan<- nft.Edit) error {
	select {
	case <-ctx.Done():
		return nil
	case <-k.needed:
	}
	tell := func(e nft.Edit) {
		select {
		case edits <- e:
		default:
		}
	}
	for ctx.Err() == nil {
		subscribed := func() { tell(nft.Edit{Lost: true}) } // for edits before the subscription
		err := k.opt.Kernel.Watch(ctx, []nft.Table{Table()}, subscribed, tell)
		if err != nil && ctx.Err() == nil {
			k.opt.Report(fmt.Errorf("watch table %s, trying again: %w", Table(), err))
			pause(ctx, lastRetry)
		}
	}
	return nil
}

// repair settles after each edit and each failure.
func (k *Keeper) repair(ctx context.Context, edits <-chan nft.Edit) error {
	wait := firstRetry
	var rested time.Time // when all owed pauses are over
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case e := <-edits:
			began := time.Now()
			k.restore(ctx, e)
			rested = later(rested, began).Add(restPerWork * time.Since(began))
			pause(ctx, time.Until(rested)-maxDebt)
		case <-k.retry:
			pause(ctx, wait)
			wait = min(2*wait, lastRetry)
			if k.again(ctx) {
				wait = firstRetry
			}
		}
	}
	return nil
}

// restore repairs the guard and reports which program changed it. It removes nothing:
// the edit may come from another Sluice that prepares this node for its own start.
func (k *Keeper) restore(ctx context.Context, e nft.Edit) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.purpose
	if p == unused {
		p = unknown
	}
	if !k.settle(ctx, p) || time.Since(k.restored) < reportPeriod {
		return
	}
	k.restored = time.Now()
	by := e.By
	if by == "" {
		by = "name unknown"
	}
	k.opt.Report(fmt.Errorf("another program (%s) changed table %s, which keeps neighbours out of 127.0.0.0/8; it was restored", by, Table()))
}

// again tries again and reports whether it worked.
func (k *Keeper) again(ctx context.Context) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.settle(ctx, k.purpose)
	return len(k.retry) == 0
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
