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
	// Listings may take one part in share of a CPU (1 %) on average, and burst at once.
	share = 100
	burst = time.Second
)

// lister lists the flows of several pods in one listing: the pods of all requests that are pending when it begins.
type lister struct {
	table   Table
	created time.Time
	active  chan struct{} // a semaphore: one wait lists for all

	// Accessed only while holding the semaphore.
	budget time.Duration
	last   time.Time // when the budget was last replenished

	mu      sync.Mutex
	pending []*request
}

// request is the request of a wait for a listing.
type request struct {
	pod   []netip.Addr
	found *flows
	done  chan error
}

func newLister(table Table) lister {
	now := time.Now()
	return lister{table: table, created: now, active: make(chan struct{}, 1), budget: burst, last: now}
}

// list returns the flows of a pod. It waits until the budget allows a listing, or the context ends.
func (l *lister) list(ctx context.Context, pod []netip.Addr, udp Timeouts) (*flows, error) {
	r := &request{pod, &flows{udp: udp}, make(chan error, 1)}
	l.mu.Lock()
	l.pending = append(l.pending, r)
	l.mu.Unlock()
	select {
	case err := <-r.done:
		return r.found, err
	case l.active <- struct{}{}:
		defer func() { <-l.active }()
	case <-ctx.Done():
		return nil, l.withdraw(ctx, r)
	}
	for len(r.done) == 0 {
		now := time.Now()
		l.budget, l.last = min(l.budget+now.Sub(l.last)/share, burst), now
		switch {
		case l.budget > 0:
			l.serve(context.WithoutCancel(ctx))
		case !pause(ctx, share*(1-l.budget)):
			return nil, l.withdraw(ctx, r)
		}
	}
	return r.found, <-r.done
}

// withdraw removes a pending request and returns the error of the context.
func (l *lister) withdraw(ctx context.Context, r *request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = slices.DeleteFunc(l.pending, func(other *request) bool { return other == r })
	return ctx.Err()
}

// serve makes one listing for each IP family, and completes all pending requests with it.
func (l *lister) serve(ctx context.Context) {
	l.mu.Lock()
	requests := l.pending
	l.pending = nil
	l.mu.Unlock()
	began := time.Now()
	pods, filters := map[netip.Addr][]*flows{}, map[conntrack.Family]conntrack.Filter{}
	for _, r := range requests {
		r.found.listed = began
		for _, addr := range r.pod {
			pods[addr] = append(pods[addr], r.found)
			f := conntrack.Filter{Family: conntrack.FamilyOf(addr), ReplySrc: netip.AddrPortFrom(addr, 0)}
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
	for _, r := range requests {
		r.done <- err
	}
}
