package ipvs

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
)

const (
	// pollPeriod leaves time for a comparison, so that a flush is repaired within 2 s.
	pollPeriod = 1500 * time.Millisecond

	// compareEvery is the number of polls after which everything is compared: about the period
	// in which kube-proxy writes everything again.
	compareEvery = 20
)

// Watch implements plane.Plane. Chains report their edits; virtual servers are counted. Everything
// is compared periodically.
func (p *Plane) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return p.kernel.Chains.Watch(ctx, kubechain.Proxy, subscribed, func(e iptables.Edit) { report(plane.Edit(e)) })
	})
	group.Go(func() error { return p.poll(ctx, report) })
	return group.Wait()
}

// poller looks for edits of what has no notifications.
type poller struct {
	plane  *Plane
	report func(plane.Edit)
	polls  int
	count  int   // virtual servers at the last poll
	wrote  int64 // the writes of the plane before it
}

func (p *Plane) poll(ctx context.Context, report func(plane.Edit)) error {
	w := poller{plane: p, report: report, wrote: -1}
	return plane.Poll(ctx, p.opt.Poll, func() {}, func(plane.Edit) {
		trouble := ""
		if err := w.poll(ctx); err != nil {
			trouble = err.Error()
		}
		p.trouble.Store(&trouble)
	})
}

// watchTrouble returns why edits are not noticed; empty: they are.
func (p *Plane) watchTrouble() string { return *p.trouble.Load() }

// poll reports an edit if there are fewer virtual servers than at the last poll and the plane wrote
// nothing meanwhile. They may be those of another program.
func (w *poller) poll(ctx context.Context) error {
	if w.polls++; w.polls%compareEvery == 0 {
		w.report(plane.Edit{Possible: true})
	}
	before := w.plane.writes.Load()
	count, err := w.plane.count(ctx)
	if err != nil || before%2 != 0 || w.plane.writes.Load() != before {
		return err
	}
	if w.wrote == before && count < w.count {
		w.report(plane.Edit{What: "virtual servers", Unclear: true})
	}
	w.count, w.wrote = count, before
	return nil
}

// count returns the number of virtual servers of IPv4, which the kernel counts; without any, of IPv6.
func (p *Plane) count(ctx context.Context) (int, error) {
	n, err := p.kernel.Servers.Count(ctx)
	if err != nil || n > 0 {
		return n, err
	}
	list, err := p.kernel.Servers.List(ctx)
	return len(list), err
}
