package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
)

// drainCheck is the time between two counts of the connections to destinations that drain.
const drainCheck = 5 * time.Second

// drains are the destinations with weight 0, which get no new connections and are deleted
// when the last one has ended. The kernel holds this state: a comparison finds destinations of
// weight 0 that have connections and that no Service needs. The connections of a virtual server that
// is deleted end at once: another host may have its address from then on.
type drains map[ipvs.Server]map[netip.AddrPort]bool

// retire replaces the deletion of destinations that have connections by weight 0. UDP has
// no connections: its flows move to other destinations at once.
func (w writer) retire(ctx context.Context, changes []ipvs.Command) ([]ipvs.Command, error) {
	var asked []ipvs.Server
	used := map[ipvs.Server]map[netip.AddrPort]bool{}
	for _, c := range changes {
		w.drains.forget(c)
		if _, twice := used[c.Server]; c.Op == ipvs.DeleteDest && !isUDP(c.Server) && !twice {
			used[c.Server] = map[netip.AddrPort]bool{}
			asked = append(asked, c.Server)
		}
	}
	if len(asked) == 0 {
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
		changes[i] = ipvs.Command{Op: ipvs.SetDest, Server: c.Server, Dest: ipvs.Destination{At: c.Dest.At}, Exists: true}
		w.drains.add(c.Server, c.Dest.At)
	}
	return changes, nil
}

func isUDP(s ipvs.Server) bool {
	return s.Protocol == uint8(cluster.UDP) || isShortCut(s.Mark) && s.Mark&markUDP != 0
}

func (d drains) add(s ipvs.Server, at netip.AddrPort) {
	if d[s] == nil {
		d[s] = map[netip.AddrPort]bool{}
	}
	d[s][at] = true
}

// forget ends the drain of a destination that is used again, or whose virtual server goes.
func (d drains) forget(c ipvs.Command) {
	switch c.Op {
	case ipvs.SetDest:
		if delete(d[c.Server], c.Dest.At); len(d[c.Server]) == 0 {
			delete(d, c.Server)
		}
	case ipvs.Delete:
		delete(d, c.Server)
	case ipvs.Set, ipvs.DeleteDest:
	}
}

// deleteDrained deletes destinations that have drained.
func (w writer) deleteDrained(ctx context.Context) error {
	servers := slices.Collect(maps.Keys(w.drains))
	lists, err := w.kernel.Servers.Destinations(ctx, servers...)
	if err != nil {
		return err
	}
	var changes []ipvs.Command
	for i, s := range servers {
		left := map[netip.AddrPort]bool{}
		for _, dest := range lists[i] {
			switch {
			case !w.drains[s][dest.At] || dest.Weight != 0: // another program has changed it; a comparison repairs it
			case dest.Active+dest.Inactive > 0:
				left[dest.At] = true
			default:
				changes = append(changes, ipvs.Command{Op: ipvs.DeleteDest, Server: s, Dest: dest})
			}
		}
		if w.drains[s] = left; len(left) == 0 {
			delete(w.drains, s)
		}
	}
	return w.kernel.Servers.Apply(ctx, changes)
}
