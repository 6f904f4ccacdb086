package drain

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

// table is a conntrack table in memory.
type table struct {
	mu      sync.Mutex
	entries map[uint32]conntrack.Entry
	last    uint32
	listed  int
	err     error

	takes time.Duration // of a listing

	begun []conntrack.Entry // all events
	lost  bool              // the next events are lost
}

// begin adds an entry and returns its ID.
func (t *table) begin(e conntrack.Entry) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	e.ID = t.last
	if t.entries == nil {
		t.entries = map[uint32]conntrack.Entry{}
	}
	t.entries[e.ID] = e
	if !t.lost {
		t.begun = append(t.begun, e)
	}
	return e.ID
}

// change replaces an entry.
func (t *table) change(id uint32, change func(*conntrack.Entry)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[id]
	change(&e)
	t.entries[id] = e
}

// close ends a TCP connection; its entry stays for a while.
func (t *table) close(id uint32) {
	t.change(id, func(e *conntrack.Entry) { e.State = closing })
}

func (t *table) Each(_ context.Context, f conntrack.Filter, fn func(conntrack.Entry) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listed++
	time.Sleep(t.takes)
	for id := range t.last {
		if e, exists := t.entries[id+1]; exists && f.Match(e) {
			err := fn(e)
			if id%100 == 1 {
				err = errors.Join(err, fn(e)) // the kernel may list an entry twice
			}
			if err != nil {
				return err
			}
		}
	}
	return t.err
}

func (t *table) Get(_ context.Context, e conntrack.Entry) (conntrack.Entry, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, exists := t.entries[e.ID]
	return now, exists, t.err
}

func (t *table) SubscribeNew(_ context.Context, backends []netip.Addr) (func() ([]conntrack.Entry, error), error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	read := len(t.begun)
	return func() (begun []conntrack.Entry, err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, e := range t.begun[read:] {
			if slices.Contains(backends, e.ReplySrc.Addr()) {
				begun = append(begun, e)
			}
		}
		read = len(t.begun)
		if t.lost {
			t.lost, err = false, conntrack.ErrLost
		}
		return begun, err
	}, t.err
}
