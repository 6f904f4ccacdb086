// Package assigntest has an interface table in memory.
package assigntest

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/windows/assign"
)

// Fake is an interface table in memory. It is safe for concurrent use.
type Fake struct {
	mu     sync.Mutex
	rows   map[netip.Addr]assign.Row
	refuse map[netip.Addr]bool
}

// New returns a Fake of a host that has some addresses already.
func New(others ...netip.Addr) *Fake {
	f := &Fake{rows: map[netip.Addr]assign.Row{}, refuse: map[netip.Addr]bool{}}
	for _, a := range others {
		f.Put(assign.Row{Addr: a, Usable: true})
	}
	return f
}

// Put sets a row, as another program would.
func (f *Fake) Put(r assign.Row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows[r.Addr] = r
}

// Refuse makes attempts to add an address fail.
func (f *Fake) Refuse(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse[a] = true
}

// Allow makes attempts to add an address succeed again.
func (f *Fake) Allow(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.refuse, a)
}

// Addrs returns the addresses of the host, sorted.
func (f *Fake) Addrs() []netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Keys(f.rows), netip.Addr.Compare)
}

// Rows implements assign.Table.
func (f *Fake) Rows() ([]assign.Row, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.rows)), nil
}

// Add implements assign.Table.
func (f *Fake) Add(a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse[a] {
		return errors.New("refused")
	}
	f.rows[a] = assign.Row{Addr: a, Marked: true, Usable: true}
	return nil
}

// Delete implements assign.Table.
func (f *Fake) Delete(a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, has := f.rows[a]; !has {
		return errors.New("not found")
	}
	delete(f.rows, a)
	return nil
}
