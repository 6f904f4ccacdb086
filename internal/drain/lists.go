package drain

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

const (
	// Listings take 1 % of a CPU in the long run, and burst more at any time.
	share = 100
	burst = time.Second
)

// lists lists the flows of several pods at once: of all waits that ask before a listing begins.
type lists struct {
	table Table
	began time.Time
	turn  chan struct{} // full while a wait lists for all

	// Of the wait that lists.
	budget time.Duration
	last   time.Time

	mu    sync.Mutex
	asked []*request
}

// request is the request of a wait.
type request struct {
	pod   []netip.Addr
	found *flows
	done  chan error
}

func newLists(table Table) lists {
	now := time.Now()
	return lists{table: table, began: now, turn: make(chan struct{}, 1), budget: burst, last: now}
}

// list returns the flows of a pod. It waits until a listing is due, but not longer than ctx.
func (l *lists) list(ctx context.Context, pod []netip.Addr, udp Timeouts) (*flows, error) {
	r := &request{pod, &flows{udp: udp}, make(chan error, 1)}
	l.mu.Lock()
	l.asked = append(l.asked, r)
	l.mu.Unlock()
	select {
	case err := <-r.done:
		return r.found, err
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, l.withdraw(ctx, r)
	}
	for len(r.done) == 0 {
		now := time.Now()
		l.budget, l.last = min(l.budget+now.Sub(l.last)/share, burst), now
		switch {
		case l.budget > 0:
			l.answer(context.WithoutCancel(ctx))
		case !pause(ctx, share*(1-l.budget)):
			return nil, l.withdraw(ctx, r)
		}
	}
	return r.found, <-r.done
}

// withdraw removes a request. It returns the reason.
func (l *lists) withdraw(ctx context.Context, r *request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = slices.DeleteFunc(l.asked, func(other *request) bool { return other == r })
	return ctx.Err()
}

// answer lists for all requests.
func (l *lists) answer(ctx context.Context) {
	l.mu.Lock()
	asked := l.asked
	l.asked = nil
	l.mu.Unlock()
	began := time.Now()
	pods, filters := map[netip.Addr][]*flows{}, map[conntrack.Family]conntrack.Filter{}
	for _, r := range asked {
		r.found.at = began
		for _, addr := range r.pod {
			pods[addr] = append(pods[addr], r.found)
			f := conntrack.Filter{Family: conntrack.IPv4, ReplySrc: netip.AddrPortFrom(addr, 0)}
			if addr.Is6() {
				f.Family = conntrack.IPv6
			}
			if other, several := filters[f.Family]; several && other != f {
				f.ReplySrc = netip.AddrPort{}
			}
			filters[f.Family] = f
		}
	}
	var err error
	for _, f := range filters {
		if err == nil {
			err = l.table.Each(ctx, f, func(e conntrack.Entry) error {
				for _, found := range pods[e.ReplySrc.Addr()] {
					found.add(e, began)
				}
				return nil
			})
		}
	}
	l.budget -= time.Since(began)
	for _, r := range asked {
		r.done <- err
	}
}
