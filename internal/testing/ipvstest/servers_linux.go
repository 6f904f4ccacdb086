// Package ipvstest has the mechanisms of mode ipvs in memory.
package ipvstest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
)

// Servers are virtual servers in memory. They refuse what the kernel refuses. One goroutine uses them.
type Servers struct {
	servers map[ipvs.Server]*server

	// Connections returns the inactive connections to a destination, and Stats what a server has counted; nil: there are
	// none.
	Connections func(ipvs.Server, netip.AddrPort) int
	Stats       func(ipvs.Server) ipvs.Stats
}

type server struct {
	ipvs.Settings
	dests map[netip.AddrPort]uint32
}

// NewServers returns none.
func NewServers() *Servers { return &Servers{servers: map[ipvs.Server]*server{}} }

// List returns all virtual servers.
func (f *Servers) List(context.Context) ([]ipvs.Listed, error) {
	var all []ipvs.Listed
	for _, s := range f.sorted() {
		listed := ipvs.Listed{Server: s, Settings: f.servers[s].Settings}
		if f.Stats != nil {
			listed.Stats = f.Stats(s)
		}
		all = append(all, listed)
	}
	return all, nil
}

// Count returns the number of virtual servers of IPv4.
func (f *Servers) Count(context.Context) (int, error) {
	n := 0
	for s := range f.servers {
		if s.Addr.Is4() {
			n++
		}
	}
	return n, nil
}

func (f *Servers) sorted() []ipvs.Server {
	return slices.SortedFunc(maps.Keys(f.servers), func(a, b ipvs.Server) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Mark, b.Mark))
	})
}

// Destinations returns the destinations of virtual servers.
func (f *Servers) Destinations(_ context.Context, servers ...ipvs.Server) ([][]ipvs.Destination, error) {
	all := make([][]ipvs.Destination, len(servers))
	for i, s := range servers {
		if f.servers[s] == nil {
			continue
		}
		for _, at := range slices.SortedFunc(maps.Keys(f.servers[s].dests), netip.AddrPort.Compare) {
			d := ipvs.Destination{At: at, Weight: f.servers[s].dests[at]}
			if f.Connections != nil {
				d.Inactive = f.Connections(s, at)
			}
			all[i] = append(all[i], d)
		}
	}
	return all, nil
}

// Apply makes changes in their order. It stops at the first error.
func (f *Servers) Apply(_ context.Context, changes []ipvs.Command) error {
	for _, c := range changes {
		if err := f.apply(c); err != nil {
			return fmt.Errorf("ipvs %s: %w", c, err)
		}
	}
	return nil
}

func (f *Servers) apply(c ipvs.Command) error {
	s := f.servers[c.Server]
	switch c.Op {
	case ipvs.Set:
		if !slices.Contains(schedulers(), c.Settings.Scheduler) {
			return fmt.Errorf("%w: %q", ipvs.ErrScheduler, c.Settings.Scheduler)
		}
		if s == nil {
			s = &server{dests: map[netip.AddrPort]uint32{}}
			f.servers[c.Server] = s
		}
		s.Settings = c.Settings
	case ipvs.Delete:
		delete(f.servers, c.Server)
	case ipvs.SetDest:
		if s == nil {
			return unix.ESRCH
		}
		s.dests[c.Dest.At] = c.Dest.Weight
	case ipvs.DeleteDest:
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
func (f *Servers) String() string {
	var b strings.Builder
	for _, s := range f.sorted() {
		fmt.Fprintln(&b, ipvs.Command{Op: ipvs.Set, Server: s, Settings: f.servers[s].Settings})
		for _, at := range slices.SortedFunc(maps.Keys(f.servers[s].dests), netip.AddrPort.Compare) {
			dest := ipvs.Destination{At: at, Weight: f.servers[s].dests[at]}
			fmt.Fprintln(&b, ipvs.Command{Op: ipvs.SetDest, Server: s, Dest: dest})
		}
	}
	return b.String()
}
