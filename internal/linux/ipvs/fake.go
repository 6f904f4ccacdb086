package ipvs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Fake is IPVS in memory. It refuses what the kernel refuses. One goroutine uses it.
type Fake struct {
	servers map[Server]*fakeServer

	// Connections returns the connections to a destination; nil: there are none.
	Connections func(Server, netip.AddrPort) int
}

type fakeServer struct {
	Settings
	dests map[netip.AddrPort]uint32
}

// NewFake returns IPVS without virtual servers.
func NewFake() *Fake { return &Fake{servers: map[Server]*fakeServer{}} }

// List returns all virtual servers.
func (f *Fake) List(context.Context) ([]Listed, error) {
	var all []Listed
	for _, s := range f.sorted() {
		all = append(all, Listed{s, f.servers[s].Settings})
	}
	return all, nil
}

// Count returns the number of virtual servers of IPv4.
func (f *Fake) Count(context.Context) (int, error) {
	n := 0
	for s := range f.servers {
		if s.Addr.Is4() {
			n++
		}
	}
	return n, nil
}

func (f *Fake) sorted() []Server {
	return slices.SortedFunc(maps.Keys(f.servers), func(a, b Server) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Mark, b.Mark))
	})
}

// Destinations returns the destinations of virtual servers.
func (f *Fake) Destinations(_ context.Context, servers ...Server) ([][]Destination, error) {
	all := make([][]Destination, len(servers))
	for i, s := range servers {
		if f.servers[s] == nil {
			continue
		}
		for _, at := range slices.SortedFunc(maps.Keys(f.servers[s].dests), netip.AddrPort.Compare) {
			d := Destination{At: at, Weight: f.servers[s].dests[at]}
			if f.Connections != nil {
				d.Inactive = f.Connections(s, at)
			}
			all[i] = append(all[i], d)
		}
	}
	return all, nil
}

// Apply makes changes in their order. It stops at the first error.
func (f *Fake) Apply(_ context.Context, changes []Change) error {
	for _, c := range changes {
		if err := f.apply(c); err != nil {
			return fmt.Errorf("ipvs %s: %w", c, c.explain(err))
		}
	}
	return nil
}

func (f *Fake) apply(c Change) error {
	s := f.servers[c.Server]
	switch c.Op {
	case Set:
		if !slices.Contains(schedulers(), c.Settings.Scheduler) {
			return unix.ENOENT
		}
		if s == nil {
			s = &fakeServer{dests: map[netip.AddrPort]uint32{}}
			f.servers[c.Server] = s
		}
		s.Settings = c.Settings
	case Delete:
		delete(f.servers, c.Server)
	case SetDest:
		if s == nil {
			return unix.ESRCH
		}
		s.dests[c.Dest.At] = c.Dest.Weight
	case DeleteDest:
		if s != nil {
			delete(s.dests, c.Dest.At)
		}
	}
	return nil
}

// schedulers returns the schedulers of Linux.
func schedulers() []string {
	return []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf"}
}

// String prints all virtual servers with their destinations, sorted.
func (f *Fake) String() string {
	var b strings.Builder
	for _, s := range f.sorted() {
		fmt.Fprintln(&b, Change{Op: Set, Server: s, Settings: f.servers[s].Settings})
		for _, at := range slices.SortedFunc(maps.Keys(f.servers[s].dests), netip.AddrPort.Compare) {
			fmt.Fprintln(&b, Change{Op: SetDest, Server: s, Dest: Destination{At: at, Weight: f.servers[s].dests[at]}})
		}
	}
	return b.String()
}
