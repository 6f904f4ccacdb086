package traffic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// minAge is the age up to which a listing is used again.
	minAge = time.Second

	// rest is the ratio between the pause after a listing and its duration: listings take at most a hundredth of one CPU.
	rest = 99
)

// errNotListed means that the first listing has not ended yet.
var errNotListed = errors.New("the conntrack table is still being listed; try again")

// Table is a conntrack table. conntrack.Table implements it.
type Table interface {
	Each(ctx context.Context, f conntrack.Filter, fn func(conntrack.Entry) error) error
	Load() (conntrack.Load, error)
}

// Lister lists the conntrack table on request. Its methods are safe for concurrent use.
type Lister struct {
	table    Table
	tracking plane.Tracking
	wake     chan struct{}

	mu     sync.Mutex
	routes *route.Snapshot // of the latest request
	last   *Listing        // nil if there is none, or the last attempt failed
	err    error           // of the last attempt
	next   time.Time       // the earliest start of the next listing
	ended  chan struct{}   // closed when the next listing has ended
}

// NewLister returns a Lister of a table.
func NewLister(table Table, tracking plane.Tracking) *Lister {
	return &Lister{table: table, tracking: tracking, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// Listing returns a new listing for the Services of a Snapshot. It returns the last listing instead if that is younger
// than minAge, if listings have used a hundredth of one CPU, or if the context ends first (the new listing continues).
func (l *Lister) Listing(ctx context.Context, routes *route.Snapshot) (*Listing, error) {
	l.mu.Lock()
	if time.Now().Before(l.next) {
		defer l.mu.Unlock()
		return l.last, l.err
	}
	l.routes = routes
	ended := l.ended
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // a wake-up is pending
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil && l.err == nil {
		return nil, errNotListed
	}
	return l.last, l.err
}

// Load returns the number of entries and its limit, without a listing. A limit of 0 means no limit.
func (l *Lister) Load() (entries, limit uint64, err error) {
	load, err := l.table.Load()
	return uint64(load.Entries), uint64(load.Limit), err
}

// Run makes the listings until the context ends. Then it returns nil.
func (l *Lister) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		}
		l.mu.Lock()
		routes, due := l.routes, !time.Now().Before(l.next)
		l.mu.Unlock()
		if !due {
			continue // the request came during the last listing, and got it
		}
		began := time.Now()
		listing, err := l.list(ctx, routes)
		if ctx.Err() != nil {
			return nil
		}
		now := time.Now()
		if listing != nil {
			listing.At, listing.Took = began, now.Sub(began)
		}
		l.mu.Lock()
		l.last, l.err, l.next = listing, err, now.Add(max(minAge, rest*now.Sub(began)))
		close(l.ended)
		l.ended = make(chan struct{})
		l.mu.Unlock()
	}
}

func (l *Lister) list(ctx context.Context, routes *route.Snapshot) (*Listing, error) {
	held, limit, err := l.Load()
	if err != nil {
		return nil, err
	}
	count := newFlows(routes, l.tracking)
	err = l.table.Each(ctx, conntrack.Filter{}, func(e conntrack.Entry) error { // both families in one walk
		count.add(e)
		return ctx.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("count connections: %w", err)
	}
	listing := count.listing()
	listing.Held, listing.Limit = held, limit
	return listing, nil
}
