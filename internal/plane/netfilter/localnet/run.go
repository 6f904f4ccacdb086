package localnet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/work"
)

// reportPeriod is the least time between two reports of repairs.
const reportPeriod = time.Minute

// Prepare makes the guard and sets the parameter for a later process that serves NodePorts on 127.0.0.1.
func (f *Follower) Prepare(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.establish(ctx, needed)
	return err
}

// Guard makes the guard if the parameter is 1, for a later process that does not serve NodePorts on 127.0.0.1.
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
	if errors.Is(err, errLeftOn) {
		return append(lines, "kept sluice: "+err.Error()), lookErr
	}
	return lines, errors.Join(err, lookErr)
}

// Run follows the need, repairs the guard whenever another program changed it, and retries failed
// actions, until the context ends. It returns nil then.
func (f *Follower) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.loop.Run(ctx) })
	group.Go(func() error {
		select { // a kernel without nf_tables has nothing to watch
		case <-ctx.Done():
			return nil
		case <-f.guarded:
		}
		return work.New(f.watch, f.opt.Report).Run(ctx)
	})
	return group.Wait()
}

// watch receives edits of other programs until the context ends.
func (f *Follower) watch(ctx context.Context) (time.Duration, error) {
	subscribed := func() { f.edit(nft.Edit{}) } // for edits before the subscription
	if err := f.opt.Kernel.Watch(ctx, []nft.Table{Table()}, subscribed, f.edit); err != nil {
		return 0, fmt.Errorf("watch table %s, trying again: %w", Table(), err)
	}
	return 0, nil
}

// edit makes Run repair an edit of another program.
func (f *Follower) edit(e nft.Edit) {
	select {
	case f.edits <- e:
	default:
	}
	f.loop.Wake()
}
