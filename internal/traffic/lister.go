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
	// shared is how long questions share a listing at least.
	shared = time.Second

	// rest is for how many times the duration of a listing none follows: listings take a hundredth of one CPU at most.
	rest = 99
)

// errNotListed is the error if there is no listing yet.
var errNotListed = errors.New("the conntrack table is still being listed; try again")

// Table is a conntrack table: conntrack.Table.
type Table interface {
	Each(ctx context.Context, f conntrack.Filter, fn func(conntrack.Entry) error) error
	Load() (conntrack.Load, error)
}

// Lister lists the conntrack table when somebody asks. Its methods may be called by several goroutines.
type Lister struct {
	table    Table
	tracking plane.Tracking
	wake     chan struct{}

	mu     sync.Mutex
	routes *route.Snapshot // of the latest question
	last   *Listing        // nil: there is none
	err    error           // of the last attempt
	next   time.Time       // no listing begins before
	ended  chan struct{}   // closed when the next listing has ended
}

// NewLister returns a Lister of a table.
func NewLister(table Table, tracking plane.Tracking) *Lister {
	return &Lister{table: table, tracking: tracking, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// Listing returns a listing by the Services of a Snapshot: the last one if it ended less than a second ago, or if
// another would take more than a hundredth of one CPU, otherwise a new one. If the context ends before that, it returns
// the last one; the new one continues.
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
	default: // Run wakes anyway
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

// Load returns how full the table is, which is known without a listing. A limit of 0 means that there is none.
func (l *Lister) Load() (entries, limit uint64, err error) {
	load, err := l.table.Load()
	return uint64(load.Entries), uint64(load.Limit), err
}

// Run makes the listings until the context ends. It returns nil then.
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
			continue // the question came while the last listing was made, and got that
		}
		began := time.Now()
		listing, err := l.list(ctx, routes)
		if ctx.Err() != nil {
			return nil
		}
		l.end(began, listing, err)
	}
}

// end keeps the result of an attempt, and answers the questions that wait for it.
func (l *Lister) end(began time.Time, listing *Listing, err error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.err, l.next = listing, err, now.Add(max(shared, rest*now.Sub(began)))
	if listing != nil {
		listing.At, listing.Took = began, now.Sub(began)
	}
	close(l.ended)
	l.ended = make(chan struct{})
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
