package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/plane"
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

// Watch implements plane.Plane. HNS has notifications, but they do not tell the changes of this plane from those of others.
// Watch reads the network more often than everything else: it reports an edit at once when the network is created or
// replaced, and when its remote subnets change.
func (p *Plane) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	ticker := time.NewTicker(min(networkPeriod, p.opt.Poll))
	defer ticker.Stop()
	last, reported := p.look(ctx), time.Now()
	subscribed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := p.look(ctx)
		if same := now.same(last); same && time.Since(reported) < p.period() {
			continue
		}
		last, reported = now, time.Now()
		report(plane.Edit{Possible: true})
	}
}

// look is the result of one read of the network by Watch.
type look struct {
	network hns.Network
	failure string // empty: the network exists
}

func (l look) same(o look) bool {
	return l.failure == o.failure && l.network.ID == o.network.ID && l.network.Type == o.network.Type &&
		slices.Equal(l.network.Remote, o.network.Remote)
}

func (p *Plane) look(ctx context.Context) look {
	n, err := p.hns.Network(ctx, p.opt.Network)
	if err == nil {
		return look{network: n}
	}
	if errors.Is(err, hns.ErrNoNetwork) {
		p.waits.set(p.whatFor(err))
	}
	return look{failure: err.Error()}
}

// waiting is the reason why the plane waits. It is safe for concurrent use.
type waiting struct {
	mu   sync.Mutex
	text string
}

func (w *waiting) set(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = text
}

func (w *waiting) get() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text
}

// whatFor returns why the plane waits after an error of HNS; empty if it does not wait.
func (p *Plane) whatFor(err error) string {
	if !errors.Is(err, hns.ErrNoNetwork) {
		return ""
	}
	return fmt.Sprintf("HNS network %q does not exist: waiting for the CNI plugin to create it", p.opt.Network)
}

// Waiting returns why the plane waits; empty if it does not wait. It is safe for concurrent use.
func (p *Plane) Waiting() string { return p.waits.get() }
