package ipvs

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

const (
	// drainCheck is the time between two looks at the connections of what drains.
	drainCheck = 5 * time.Second

	// drainTime bounds a drain. IPVS itself forgets an idle connection after that time.
	drainTime = 15 * time.Minute
)

// drains are the virtual servers that have destinations with weight 0, which get no new
// connections and are deleted when the last one has ended. The kernel holds this state:
// after a restart a comparison finds such destinations and drains them again.
type drains map[ipvs.Server]*drain

type drain struct {
	dests   map[netip.AddrPort]time.Time // when each is deleted at the latest
	server  bool                         // the virtual server is deleted afterwards
	address bool                         // and its address
}

// hold reports whether an address must stay on the interface.
func (d drains) hold(a netip.Addr) bool {
	for s, drain := range d {
		if drain.address && s.Addr == a && s.Mark == 0 {
			return true
		}
	}
	return false
}

// server adds the change of a virtual server. One that drains is not deleted yet.
func (d drains) server(list []ipvs.Change, s *step) []ipvs.Change {
	drain := d[s.Key.server]
	if drain != nil {
		drain.server = s.Op == ledger.Remove
	}
	if drain == nil || !drain.server {
		list = append(list, serverChange(s))
	}
	return list
}

// address adds the change of an address. One of a virtual server that drains stays.
func (d drains) address(add, remove []netip.Addr, s *step) (added, removed []netip.Addr) {
	a, gone := s.Key.at.Addr(), s.Op == ledger.Remove
	for of, drain := range d {
		if of.Addr == a && of.Mark == 0 {
			drain.address = gone && drain.server
		}
	}
	switch {
	case !gone:
		add = append(add, a)
	case !d.hold(a):
		remove = append(remove, a)
	}
	return add, remove
}

// retire replaces the deletion of destinations that have connections by weight 0. UDP has
// no connections: its flows move to other destinations at once.
func (w writer) retire(ctx context.Context, changes []ipvs.Change) ([]ipvs.Change, error) {
	var asked []ipvs.Server
	used := map[ipvs.Server]map[netip.AddrPort]bool{}
	for _, c := range changes {
		w.drains.forget(c)
		if _, twice := used[c.Server]; c.Op == ipvs.DeleteDest && !isUDP(c.Server) && !twice {
			used[c.Server] = map[netip.AddrPort]bool{}
			asked = append(asked, c.Server)
		}
	}
	if len(asked) == 0 || w.drains == nil {
		return changes, nil
	}
	lists, err := w.kernel.Servers.Destinations(ctx, asked...)
	if err != nil {
		return nil, err
	}
	for i, list := range lists {
		for _, dest := range list {
			used[asked[i]][dest.At] = dest.Active+dest.Inactive > 0
		}
	}
	for i, c := range changes {
		if c.Op != ipvs.DeleteDest || !used[c.Server][c.Dest.At] {
			continue
		}
		changes[i] = ipvs.Change{Op: ipvs.SetDest, Server: c.Server, Dest: ipvs.Destination{At: c.Dest.At}}
		if w.drains[c.Server] == nil {
			w.drains[c.Server] = &drain{dests: map[netip.AddrPort]time.Time{}}
		}
		w.drains[c.Server].dests[c.Dest.At] = w.now().Add(drainTime)
	}
	return changes, nil
}

func isUDP(s ipvs.Server) bool { return s.Protocol == udp || isShortCut(s.Mark) && s.Mark&markUDP != 0 }

// forget ends the drain of a destination that is used again.
func (d drains) forget(c ipvs.Change) {
	if drain := d[c.Server]; drain != nil && c.Op == ipvs.SetDest {
		delete(drain.dests, c.Dest.At)
		if len(drain.dests) == 0 && !drain.server {
			delete(d, c.Server)
		}
	}
}

// settle deletes what has drained: destinations without connections, virtual servers without
// destinations, and addresses without virtual servers.
func (w writer) settle(ctx context.Context) error {
	var servers []ipvs.Server
	for s := range w.drains {
		servers = append(servers, s)
	}
	lists, err := w.kernel.Servers.Destinations(ctx, servers...)
	if err != nil {
		return err
	}
	var changes []ipvs.Change
	var addrs []netip.Addr
	ended := drains{}
	for i, s := range servers {
		d := w.drains[s]
		left := map[netip.AddrPort]time.Time{}
		for _, dest := range lists[i] {
			until := d.dests[dest.At]
			switch {
			case until.IsZero() || dest.Weight != 0: // another program has changed it; a comparison repairs it
			case dest.Active+dest.Inactive > 0 && w.now().Before(until):
				left[dest.At] = until
			default:
				changes = append(changes, ipvs.Change{Op: ipvs.DeleteDest, Server: s, Dest: dest})
			}
		}
		if d.dests = left; len(left) > 0 {
			continue
		}
		ended[s] = d
		if d.server {
			changes = append(changes, ipvs.Change{Op: ipvs.Delete, Server: s})
		}
	}
	if err := w.kernel.Servers.Apply(ctx, changes); err != nil {
		return err
	}
	for s, d := range ended {
		delete(w.drains, s)
		if d.address && !w.drains.hold(s.Addr) {
			addrs = append(addrs, s.Addr)
		}
	}
	if len(addrs) == 0 {
		return nil
	}
	return w.kernel.Links.Change(ctx, Device, nil, addrs)
}
