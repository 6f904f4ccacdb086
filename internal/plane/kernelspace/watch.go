package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// networkPeriod is the time between two reads of the network, each of which is one call of HNS.
const networkPeriod = time.Second

// readPause is the minimum time between two comparisons as a multiple of the duration of a read, which keeps HNS
// busy for each load balancer.
const readPause = 100

// period returns the time between two periodic comparisons.
func (p *Plane) period() time.Duration {
	return max(p.opt.Poll, readPause*time.Duration(p.took.Load()))
}

// Watch implements plane.Plane. HNS has notifications, but they do not tell the changes of this plane from other
// changes. Watch reads the network more often than everything else: it reports an edit at once when the network is
// created or replaced, and when its remote subnets change.
func (p *Plane) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	ticker := time.NewTicker(min(networkPeriod, p.opt.Poll))
	defer ticker.Stop()
	last, reported := p.readNetwork(ctx), time.Now()
	subscribed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := p.readNetwork(ctx)
		if now.same(last) && time.Since(reported) < p.period() {
			continue
		}
		last, reported = now, time.Now()
		report(plane.Edit{Possible: true})
	}
}

// networkState is the result of one read of the network by Watch.
type networkState struct {
	network hns.Network
	failure string // empty: the network exists
}

func (s networkState) same(o networkState) bool {
	return s.failure == o.failure && s.network.ID == o.network.ID && s.network.Type == o.network.Type &&
		slices.Equal(s.network.Remote, o.network.Remote)
}

func (p *Plane) readNetwork(ctx context.Context) networkState {
	n, err := p.hns.Network(ctx, p.opt.Network)
	if err == nil {
		return networkState{network: n}
	}
	if errors.Is(err, hns.ErrNoNetwork) {
		p.setWaiting(err)
	}
	return networkState{failure: err.Error()}
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
