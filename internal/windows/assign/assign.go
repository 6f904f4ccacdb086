// Package assign adds addresses to an interface of this host, and removes only addresses that it added. The host
// marks them, so that the next run knows the addresses of a crashed one.
//
// The interface table is small: *_windows.go implements it for Windows, and package assigntest in memory.
package assign

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Row is an address of an interface of this host.
type Row struct {
	Addr      netip.Addr
	Marked    bool // this program added it, now or in an earlier run
	Usable    bool // sockets can be bound to it
	Duplicate bool // another host has it too, so it will not be usable
}

// Table is the addresses of all interfaces of this host.
type Table interface {
	Rows() ([]Row, error)
	Add(netip.Addr) error    // to one interface, with the mark
	Delete(netip.Addr) error // from that interface
}

// Assigner adds and removes addresses. It is safe for concurrent use. Only one process of a
// machine may have one, which the lock of the machine ensures.
type Assigner struct {
	table Table

	mu    sync.Mutex
	added map[netip.Addr]bool // now or in an earlier run
}

// New returns an Assigner that knows the addresses of earlier runs.
func New(table Table) (*Assigner, error) {
	rows, err := table.Rows()
	if err != nil {
		return nil, fmt.Errorf("read which addresses of Services this host has: %w", err)
	}
	return &Assigner{table: table, added: marked(rows)}, nil
}

// How long Add waits for new addresses to be usable: Windows first asks the network whether another host has an
// address, which takes 1 to 3 seconds, and does not ask for addresses of its loopback interface.
const (
	usableTimeout = 5 * time.Second
	usablePeriod  = 20 * time.Millisecond
)

// Add adds addresses that the host lacks, and waits until they are usable. Addresses that it has from
// elsewhere stay as they are, and are never removed. Add returns the reason for each that failed.
func (a *Assigner) Add(ctx context.Context, want []netip.Addr) map[netip.Addr]error {
	a.mu.Lock()
	added, failed := a.addMissing(want)
	a.mu.Unlock()
	if len(added) > 0 {
		a.await(ctx, added, failed)
	}
	return failed
}

// addMissing adds addresses that the host lacks, without waiting. The caller holds mu.
func (a *Assigner) addMissing(want []netip.Addr) (added []netip.Addr, failed map[netip.Addr]error) {
	failed = map[netip.Addr]error{}
	rows, err := a.table.Rows()
	if err != nil {
		for _, addr := range want {
			failed[addr] = fmt.Errorf("read the addresses of this host: %w", err)
		}
		return nil, failed
	}
	for _, addr := range missing(rows, want) {
		if err := a.table.Add(addr); err != nil {
			failed[addr] = fmt.Errorf("add address %s: %w", addr, err)
			continue
		}
		a.added[addr] = true
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

// unready returns the addresses that may become usable. It adds the others to failed.
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

// Restore adds addresses again that another program removed. It does not wait until they are usable.
func (a *Assigner) Restore(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	want := a.addrs()
	_, failed := a.addMissing(want)
	errs := make([]error, len(want))
	for i, addr := range want {
		errs[i] = failed[addr] // nil: it is there
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
	return slices.SortedFunc(maps.Keys(a.added), netip.Addr.Compare)
}

// Retain removes all addresses that this program added, now or in an earlier run, except some. It returns the removed
// addresses, except ones that the host no longer had.
func (a *Assigner) Retain(keep []netip.Addr) ([]netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := map[netip.Addr]bool{}
	for _, addr := range keep {
		kept[addr] = true
	}
	old := slices.DeleteFunc(a.addrs(), func(addr netip.Addr) bool { return kept[addr] })
	if len(old) == 0 {
		return nil, nil
	}
	rows, err := a.table.Rows()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of this host: %w", err)
	}
	there := marked(rows)
	var gone []netip.Addr
	var errs []error
	for _, addr := range old {
		if there[addr] {
			if err := a.table.Delete(addr); err != nil {
				errs = append(errs, fmt.Errorf("remove address %s: %w", addr, err))
				continue
			}
			gone = append(gone, addr)
		}
		delete(a.added, addr)
	}
	return gone, errors.Join(errs...)
}

// marked returns the addresses that this program added.
func marked(rows []Row) map[netip.Addr]bool {
	set := map[netip.Addr]bool{}
	for _, r := range rows {
		if r.Marked {
			set[r.Addr] = true
		}
	}
	return set
}

// Candidate is an interface of this host.
type Candidate struct {
	ID       uint64
	Name     string
	Loopback bool
}

// hostInterface is where kube-proxy's mode winuserspace added addresses: the interface by which the host
// connects to its containers.
const hostInterface = "vEthernet (HNS Internal NIC)"

// Choose returns the interface that gets addresses: the one with a name; without a name, the interface that
// kube-proxy used, or else the loopback interface.
func Choose(all []Candidate, name string) (Candidate, error) {
	named := func(name string) int {
		return slices.IndexFunc(all, func(c Candidate) bool { return strings.EqualFold(c.Name, name) })
	}
	if name != "" {
		if i := named(name); i >= 0 {
			return all[i], nil
		}
		return Candidate{}, fmt.Errorf("no interface is named %q", name)
	}
	if i := named(hostInterface); i >= 0 {
		return all[i], nil
	}
	if i := slices.IndexFunc(all, func(c Candidate) bool { return c.Loopback }); i >= 0 {
		return all[i], nil
	}
	return Candidate{}, fmt.Errorf("no interface is named %q, and none is a loopback interface", hostInterface)
}
