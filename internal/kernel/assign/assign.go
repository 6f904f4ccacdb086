// Package assign gives addresses to an interface of this host, and takes back those that it gave
// and no others. A journal outlives the process, so that the next run knows what a crashed one gave.
//
// The interface table and the journal are small interfaces: those of Windows are in *_windows.go,
// and Fake has both in memory.
package assign

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Mark is an address that this program gave to an interface, or is about to give.
type Mark struct {
	Addr      netip.Addr
	Interface uint64 // its identity, which no other interface gets while the host runs
}

// Row is an address of an interface of this host.
type Row struct {
	Mark
	Bits      int  // length of its prefix
	Usable    bool // sockets can be bound to it
	Duplicate bool // another host has it too, so it will not be usable
}

// Table is the addresses of all interfaces of this host.
type Table interface {
	Interface() uint64 // that gets addresses
	Rows() ([]Row, error)
	Add(netip.Addr) error
	Delete(Mark) error
}

// Journal remembers Marks until the host starts anew, which also takes the addresses away.
type Journal interface {
	Marks() ([]Mark, error)
	Write(Mark) error
	Strike(Mark) error
}

// Assigner gives addresses and takes them back. It is safe for concurrent use. Only one process may have
// one.
type Assigner struct {
	table   Table
	journal Journal

	mu    sync.Mutex
	marks map[netip.Addr]Mark // as in the journal
}

// New returns an Assigner that knows what earlier runs gave.
func New(table Table, journal Journal) (*Assigner, error) {
	list, err := journal.Marks()
	if err != nil {
		return nil, fmt.Errorf("read which addresses of Services this host has: %w", err)
	}
	a := &Assigner{table: table, journal: journal, marks: map[netip.Addr]Mark{}}
	for _, m := range list {
		a.marks[m.Addr] = m
	}
	return a, nil
}

// How long Add waits for new addresses to be usable: Windows first asks the network whether another host
// has an address, which takes 1 to 3 seconds, and does not ask for those of its loopback interface.
const (
	usableTimeout = 5 * time.Second
	usablePeriod  = 20 * time.Millisecond
)

// Add gives addresses that the host lacks, and waits until they are usable. Addresses that it has from
// elsewhere stay as they are, and are never taken away. Add returns the reason for each that failed.
func (a *Assigner) Add(ctx context.Context, want []netip.Addr) map[netip.Addr]error {
	a.mu.Lock()
	defer a.mu.Unlock()
	failed := map[netip.Addr]error{}
	rows, err := a.table.Rows()
	if err != nil {
		for _, addr := range want {
			failed[addr] = fmt.Errorf("read the addresses of this host: %w", err)
		}
		return failed
	}
	var added []netip.Addr
	for _, addr := range missing(rows, want) {
		if err := a.give(addr); err != nil {
			failed[addr] = err
			continue
		}
		added = append(added, addr)
	}
	if len(added) > 0 {
		a.await(ctx, added, failed)
	}
	return failed
}

// missing returns the wanted addresses that no interface has, each once.
func missing(rows []Row, want []netip.Addr) []netip.Addr {
	has := map[netip.Addr]bool{}
	for _, r := range rows {
		has[r.Addr] = true
	}
	var list []netip.Addr
	for _, addr := range want {
		if !has[addr] {
			has[addr] = true
			list = append(list, addr)
		}
	}
	return list
}

// give gives an address. It is in the journal before the host has it: a crash between the two leaves a
// mark without an address.
func (a *Assigner) give(addr netip.Addr) error {
	m := Mark{addr, a.table.Interface()}
	known := a.marks[addr] == m
	if !known {
		if err := a.journal.Write(m); err != nil {
			return fmt.Errorf("remember address %s: %w", addr, err)
		}
		a.marks[addr] = m
	}
	err := a.table.Add(addr)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("add address %s: %w", addr, err)
	if known {
		return err // Restore tries again
	}
	return errors.Join(err, a.strike(m))
}

func (a *Assigner) strike(m Mark) error {
	if err := a.journal.Strike(m); err != nil {
		return fmt.Errorf("forget address %s: %w", m.Addr, err)
	}
	delete(a.marks, m.Addr)
	return nil
}

// await waits until addresses are usable.
func (a *Assigner) await(ctx context.Context, added []netip.Addr, failed map[netip.Addr]error) {
	ctx, cancel := context.WithTimeout(ctx, usableTimeout)
	defer cancel()
	ticker := time.NewTicker(usablePeriod)
	defer ticker.Stop()
	for {
		rows, err := a.table.Rows()
		if err != nil {
			return // opening the socket reports the error
		}
		added = unready(rows, added, failed)
		if len(added) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			for _, addr := range added {
				failed[addr] = fmt.Errorf("address %s was added and is not usable yet", addr)
			}
			return
		case <-ticker.C:
		}
	}
}

// unready returns the addresses that may become usable. Those that will not are added to failed.
func unready(rows []Row, addrs []netip.Addr, failed map[netip.Addr]error) []netip.Addr {
	var list []netip.Addr
	for _, addr := range addrs {
		i := slices.IndexFunc(rows, func(r Row) bool { return r.Addr == addr })
		switch {
		case i >= 0 && rows[i].Duplicate:
			failed[addr] = fmt.Errorf("another host has address %s", addr)
		case i < 0 || !rows[i].Usable:
			list = append(list, addr)
		}
	}
	return list
}

// Restore gives the addresses again that another program took away.
func (a *Assigner) Restore(ctx context.Context) error {
	want := a.Addrs()
	var errs []error
	failed := a.Add(ctx, want)
	for _, addr := range want {
		if err := failed[addr]; err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Addrs returns the addresses that this program gave, now or in an earlier run, sorted.
func (a *Assigner) Addrs() []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.SortedFunc(maps.Keys(a.marks), netip.Addr.Compare)
}

// Retain takes all addresses away that this program gave, now or in an earlier run, except some. It
// returns those that the host had.
func (a *Assigner) Retain(keep []netip.Addr) ([]netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := unwanted(a.marks, keep)
	if len(old) == 0 {
		return nil, nil
	}
	rows, err := a.table.Rows()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of this host: %w", err)
	}
	var gone []netip.Addr
	var errs []error
	for _, m := range old {
		if given(rows, m) {
			if err := a.table.Delete(m); err != nil {
				errs = append(errs, fmt.Errorf("remove address %s: %w", m.Addr, err))
				continue
			}
			gone = append(gone, m.Addr)
		}
		if err := a.strike(m); err != nil {
			errs = append(errs, err)
		}
	}
	return gone, errors.Join(errs...)
}

// unwanted returns the marks of addresses that are not to be kept, sorted.
func unwanted(marks map[netip.Addr]Mark, keep []netip.Addr) []Mark {
	wanted := map[netip.Addr]bool{}
	for _, addr := range keep {
		wanted[addr] = true
	}
	var list []Mark
	for _, m := range marks {
		if !wanted[m.Addr] {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b Mark) int { return a.Addr.Compare(b.Addr) })
	return list
}

// given reports whether the host has a marked address as this program gives it: on that interface, and
// alone in its prefix.
func given(rows []Row, m Mark) bool {
	return slices.ContainsFunc(rows, func(r Row) bool { return r.Mark == m && r.Bits == m.Addr.BitLen() })
}
