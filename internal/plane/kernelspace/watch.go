package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// networkPeriod is the time between two reads of the network, each of which is one call of HNS.
const networkPeriod = time.Second

// readPause is the minimum time between two comparisons as a multiple of the duration of a read, which keeps HNS
// busy for each load balancer.
const readPause = 100

// Watch implements plane.Plane. HNS has notifications, but they do not tell the changes of this plane from other
// changes. Watch reads the network more often than everything else: it reports an edit at once when the network is
// created or replaced, and when its remote subnets change.
func (p *Plane) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	last, reported := p.readNetwork(ctx), time.Now()
	return plane.Poll(ctx, min(networkPeriod, p.opt.Poll), subscribed, func(e plane.Edit) {
		now, period := p.readNetwork(ctx), max(p.opt.Poll, readPause*time.Duration(p.took.Load()))
		if now == last && time.Since(reported) < period {
			return
		}
		last, reported = now, time.Now()
		report(e)
	})
}

// readNetwork returns the state of the network as text that changes with it, or the error of the read.
func (p *Plane) readNetwork(ctx context.Context) string {
	n, err := p.hns.Network(ctx, p.opt.Network)
	if err == nil {
		return fmt.Sprint(n)
	}
	if errors.Is(err, hns.ErrNoNetwork) {
		p.setWaiting(err)
	}
	return err.Error()
}

// setWaiting records and returns why the plane waits after an error of HNS; empty if it does not wait.
func (p *Plane) setWaiting(err error) string {
	reason := ""
	if errors.Is(err, hns.ErrNoNetwork) {
		reason = fmt.Sprintf("HNS network %q does not exist: waiting for the CNI plugin to create it", p.opt.Network)
	}
	p.waits.Store(&reason)
	return reason
}

// Waiting returns why the plane waits; empty if it does not wait. It is safe for concurrent use.
func (p *Plane) Waiting() string { return *p.waits.Load() }
