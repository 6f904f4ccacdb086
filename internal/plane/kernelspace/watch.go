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

// networkPeriod is the time between two looks at the network: one call of HNS.
const networkPeriod = time.Second

// readPause is the least ratio of the time between two comparisons to the duration of a read: HNS is asked
// for each load balancer, and takes time of its own for the answer.
const readPause = 100

// period returns the time between two comparisons without a cause.
func (p *Plane) period() time.Duration {
	return max(p.opt.Poll, readPause*time.Duration(p.took.Load()))
}

// Watch implements plane.Plane. HNS has notifications, but they do not name who made a change. The
// network itself is read more often than everything else: when it is made, or made anew, and when its
// remote subnets change, Watch reports an edit at once.
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

// look is what Watch sees of the network.
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

// waiting is what the plane waits for. It is safe for concurrent use.
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

// whatFor returns what the plane waits for after an error of HNS; empty: nothing.
func (p *Plane) whatFor(err error) string {
	if !errors.Is(err, hns.ErrNoNetwork) {
		return ""
	}
	return fmt.Sprintf("HNS network %q does not exist: waiting for the CNI plugin to create it", p.opt.Network)
}

// Waiting returns what the plane waits for; empty: nothing. It is safe for concurrent use.
func (p *Plane) Waiting() string { return p.waits.get() }
