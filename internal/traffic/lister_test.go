package traffic

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// slow is a conntrack table with slow listings.
type slow struct {
	takes time.Duration // of both families together
	err   error
	lists atomic.Int64
}

func (s *slow) Load() (conntrack.Load, error) { return conntrack.Load{Entries: 3, Limit: 8}, nil }

func (s *slow) Each(ctx context.Context, _ conntrack.Filter, fn func(conntrack.Entry) error) error {
	s.lists.Add(1)
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	return errors.Join(fn(to(client, webIP, web1)), s.err)
}

// run starts a Lister of a table in the bubble of a test.
func run(t *testing.T, table Table) *Lister {
	t.Helper()
	l := NewLister(table, plane.Translated)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l
}

// Concurrent requests share a listing. Later requests get the last listing until 99 times its duration has passed, so
// that listings take a hundredth of one CPU.
func TestListingsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slow{takes: 100 * time.Millisecond}
		l, routes, began := run(t, table), services(t, []string{"web"}, web1), time.Now()
		answers := make(chan *Listing)
		for range 10 {
			go func() {
				got, err := l.Listing(t.Context(), routes)
				if err != nil {
					t.Error(err)
				}
				answers <- got
			}()
		}
		first := <-answers
		for range 9 {
			if got := <-answers; got != first {
				t.Error("another listing was made")
			}
		}
		got := *first
		got.Ports, got.Clients = nil, nil
		if want := (Listing{At: began, Took: table.takes, Entries: 1, Held: 3, Limit: 8}); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		time.Sleep(rest*table.takes - time.Nanosecond)
		if got, err := l.Listing(t.Context(), routes); got != first || err != nil || table.lists.Load() != 1 {
			t.Errorf("got %p, %v, want the last; %d were made", got, err, table.lists.Load())
		}
		time.Sleep(time.Nanosecond)
		if got, err := l.Listing(t.Context(), routes); got == first || err != nil || table.lists.Load() != 2 {
			t.Errorf("got %p, %v, want a new one; %d were made", got, err, table.lists.Load())
		}
	})
}

// A request whose context ends gets the last listing, or an error if there is none. The new listing continues.
func TestRequestsThatDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slow{takes: 3 * time.Second}
		l, routes := run(t, table), services(t, []string{"web"}, web1)
		ask := func() (*Listing, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return l.Listing(ctx, routes)
		}
		if got, err := ask(); got != nil || !errors.Is(err, errNotListed) {
			t.Errorf("got %v, %v", got, err)
		}
		time.Sleep(table.takes)
		first, err := ask()
		if first == nil || err != nil {
			t.Fatal(first, err)
		}
		time.Sleep(rest * table.takes)
		if got, err := ask(); got != first || err != nil || table.lists.Load() != 2 {
			t.Errorf("got %p, %v, want the last; %d were made", got, err, table.lists.Load())
		}
		time.Sleep(table.takes)
		if got, err := ask(); got == first || err != nil || table.lists.Load() != 2 {
			t.Errorf("got %p, %v, want the new one; %d were made", got, err, table.lists.Load())
		}
	})
}

// A failed listing returns its error for a second, then it is tried again.
func TestListingThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slow{err: errors.New("permission denied")}
		l, routes := run(t, table), services(t, []string{"web"}, web1)
		for range 2 {
			if got, err := l.Listing(t.Context(), routes); got != nil || !errors.Is(err, table.err) {
				t.Errorf("got %v, %v", got, err)
			}
		}
		if table.lists.Load() != 1 {
			t.Errorf("%d listings", table.lists.Load())
		}
		table.err = nil
		time.Sleep(minAge)
		if got, err := l.Listing(t.Context(), routes); got == nil || err != nil {
			t.Errorf("got %v, %v", got, err)
		}
		if entries, limit, err := l.Load(); entries != 3 || limit != 8 || err != nil {
			t.Errorf("got %d of %d, %v", entries, limit, err)
		}
	})
}
