package assign

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// Fake is an interface table and a journal in memory. Its own interface is 1. It is safe for concurrent
// use.
type Fake struct {
	mu      sync.Mutex
	rows    map[Mark]Row
	written map[netip.Addr]Mark
	refuse  map[netip.Addr]bool
}

// NewFake returns a Fake of a host that has some addresses on another interface.
func NewFake(others ...netip.Prefix) *Fake {
	f := &Fake{rows: map[Mark]Row{}, written: map[netip.Addr]Mark{}, refuse: map[netip.Addr]bool{}}
	for _, p := range others {
		f.Put(Row{Mark: Mark{p.Addr(), 2}, Bits: p.Bits(), Usable: true})
	}
	return f
}

// Put sets a row, as another program would.
func (f *Fake) Put(r Row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows[r.Mark] = r
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
	var list []netip.Addr
	for m := range f.rows {
		list = append(list, m.Addr)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// Interface implements Table.
func (f *Fake) Interface() uint64 { return 1 }

// Rows implements Table.
func (f *Fake) Rows() ([]Row, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.rows)), nil
}

// Add implements Table.
func (f *Fake) Add(a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse[a] {
		return errors.New("refused")
	}
	m := Mark{a, 1}
	f.rows[m] = Row{Mark: m, Bits: a.BitLen(), Usable: true}
	return nil
}

// Delete implements Table.
func (f *Fake) Delete(m Mark) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, has := f.rows[m]; !has {
		return errors.New("not found")
	}
	delete(f.rows, m)
	return nil
}

// Marks implements Journal.
func (f *Fake) Marks() ([]Mark, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.written)), nil
}

// Write implements Journal.
func (f *Fake) Write(m Mark) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written[m.Addr] = m
	return nil
}

// Strike implements Journal.
func (f *Fake) Strike(m Mark) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.written, m.Addr)
	return nil
}
