// Package assign adds addresses to an interface of this host, and removes those that it added
// and no others. A journal outlives the process, so that the next run knows what a crashed one added.
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

// ErrClaimed means that another process of this machine adds and removes addresses.
var ErrClaimed = errors.New("another Sluice on this machine has addresses of Services, perhaps one of another user; stop it first")

// Mark is an address that this program added to an interface, or is about to add.
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

// Journal remembers Marks until the host starts anew, which also removes the addresses.
type Journal interface {
	Marks() ([]Mark, error)
	Write(Mark) error
	Strike(Mark) error
}

// Assigner adds and removes addresses. It is safe for concurrent use. Only one process may have
// one.
type Assigner struct {
	table   Table
	journal Journal

	mu     sync.Mutex
	marks  map[netip.Addr]Mark     // as in the journal
	wanted map[netip.Addr]struct{} // by this run; marks of earlier ones may have others
}

// New returns an Assigner that knows what earlier runs added.
func New(table Table, journal Journal) (*Assigner, error) {
	list, err := journal.Marks()
	if err != nil {
		return nil, fmt.Errorf("read which addresses of Services this host has: %w", err)
	}
	a := &Assigner{table: table, journal: journal, marks: map[netip.Addr]Mark{}, wanted: map[netip.Addr]struct{}{}}
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

// Add adds addresses that the host lacks, and waits until they are usable. Addresses that it has from
// elsewhere stay as they are, and are never removed. Add returns the reason for each that failed.
func (a *Assigner) Add(ctx context.Context, want []netip.Addr) map[netip.Addr]error {
	added, failed := a.addMissing(want)
	if len(added) > 0 {
		a.await(ctx, added, failed)
	}
	return failed
}

// addMissing adds addresses that the host lacks, without waiting.
func (a *Assigner) addMissing(want []netip.Addr) (added []netip.Addr, failed map[netip.Addr]error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, addr := range want {
		a.wanted[addr] = struct{}{}
	}
	return a.change(want)
}

// change adds addresses that the host lacks. The caller holds mu.
func (a *Assigner) change(want []netip.Addr) (added []netip.Addr, failed map[netip.Addr]error) {
	failed = map[netip.Addr]error{}
	rows, err := a.table.Rows()
	if err != nil {
		for _, addr := range want {
			failed[addr] = fmt.Errorf("read the addresses of this host: %w", err)
		}
		return nil, failed
	}
	for _, addr := range missing(rows, want) {
		if err := a.add(addr); err != nil {
			failed[addr] = err
			continue
		}
		added = append(added, addr)
	}
	return added, failed
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

// add adds an address. It is in the journal before the host has it: a crash between the two leaves a
// mark without an address.
func (a *Assigner) add(addr netip.Addr) error {
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

// Restore adds the addresses of this run again that another program removed. It does not wait until they
// are usable.
func (a *Assigner) Restore(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	want := slices.DeleteFunc(a.addrs(), func(addr netip.Addr) bool {
		return !has(a.wanted, addr) // only the first write of this run decides about those of earlier ones
	})
	_, failed := a.change(want)
	var errs []error
	for _, addr := range want {
		if err := failed[addr]; err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Addrs returns the addresses that this program added, now or in an earlier run, sorted.
func (a *Assigner) Addrs() []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.addrs()
}

func (a *Assigner) addrs() []netip.Addr {
	return slices.SortedFunc(maps.Keys(a.marks), netip.Addr.Compare)
}

// Retain removes all addresses that this program added, now or in an earlier run, except some. It
// returns those that the host had.
func (a *Assigner) Retain(keep []netip.Addr) ([]netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := map[netip.Addr]struct{}{}
	for _, addr := range keep {
		kept[addr] = struct{}{}
	}
	maps.DeleteFunc(a.wanted, func(addr netip.Addr, _ struct{}) bool { return !has(kept, addr) })
	old := unwanted(a.marks, kept)
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
		if assigned(rows, m) {
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
func unwanted(marks map[netip.Addr]Mark, keep map[netip.Addr]struct{}) []Mark {
	var list []Mark
	for _, m := range marks {
		if !has(keep, m.Addr) {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b Mark) int { return a.Addr.Compare(b.Addr) })
	return list
}

func has(set map[netip.Addr]struct{}, addr netip.Addr) bool {
	_, ok := set[addr]
	return ok
}

// assigned reports whether the host has a marked address as this program adds it: on that interface, and
// alone in its prefix.
func assigned(rows []Row, m Mark) bool {
	return slices.ContainsFunc(rows, func(r Row) bool { return r.Mark == m && r.Bits == m.Addr.BitLen() })
}
