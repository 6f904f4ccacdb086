package takeover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// remove takes out what was found, while Sluice's own rules are in force. What
// fails in one mechanism does not keep it from the others.
//
// No connection is lost. Conntrack goes on translating those that exist. New
// ones find either kube-proxy's rules whole, or Sluice's alone. Connections of
// IPVS are in its own memory, and end with their virtual server; so those that
// have any stay, with all that their packets need, and are a matter of a later
// removal. New connections do not reach them: Sluice translates earlier.
func (r *rules) remove(ctx context.Context, f findings) (Account, error) {
	var a Account
	var tableErr error
	if len(f.tables) > 0 {
		tableErr = a.note(r.removeTables(ctx, f), tableEntry(f.tables))
	}
	v, gone, serverErr := r.removeServers(ctx, f.vips)
	if v.inUse() {
		a.enter(gone, v)
		return a, errors.Join(tableErr, serverErr)
	}
	var deviceErr error
	if serverErr == nil {
		gone.Addrs, deviceErr = v.Addrs, r.removeDevice(ctx, v)
		gone.Device = v.Device && deviceErr == nil
	}
	all, chainErr := r.removeChains(ctx, f.chains, &a)
	var setErr error
	if all { // rules referred to the sets
		gone.Sets, setErr = r.removeSets(ctx, v.Sets)
	}
	a.enter(gone, v)
	return a, errors.Join(tableErr, serverErr, deviceErr, chainErr, setErr)
}

// enter enters what of IPVS is gone, and what is left.
func (a *Account) enter(gone, v vips) {
	if e := gone.entry(); e.Count > 0 {
		a.Removed = append(a.Removed, e)
	}
	a.Left = append(a.Left, v.left()...)
}

// note enters what was removed, unless that failed.
func (a *Account) note(err error, e Entry) error {
	if err == nil {
		a.Removed = append(a.Removed, e)
	}
	return err
}

// removeTables closes the entrances first. A packet that is between two chains
// of a table then still finds the second one, which translates its source.
func (r *rules) removeTables(ctx context.Context, f findings) error {
	var names []nft.Table
	for _, t := range f.tables {
		names = append(names, t.Table)
	}
	if err := r.tables.Close(ctx, names...); err != nil {
		return err
	}
	r.pause()
	return r.tables.Delete(ctx, names...)
}

// removeServers removes the idle virtual servers and the addresses that nobody
// needs, and returns what of them is gone. It also says what is in use.
func (r *rules) removeServers(ctx context.Context, v vips) (now, gone vips, err error) {
	if v.Unknown {
		return v, gone, nil
	}
	for _, s := range v.Idle {
		if err := r.servers.Delete(ctx, s); err != nil {
			return v, gone, err
		}
		gone.Idle = append(gone.Idle, s)
	}
	if !v.Device || v.AtOnce {
		return v, gone, nil
	}
	v, err = r.hold(ctx, v)
	if err != nil {
		return v, gone, err
	}
	return v, gone, r.links.RemoveAddresses(ctx, device, v.unused())
}

// hold finds the addresses that programs of this host have connections from: to
// an address on the interface they connect from that address, and would not get
// answers without it. First it has the next ones connect from elsewhere.
func (r *rules) hold(ctx context.Context, v vips) (vips, error) {
	sources, err := r.sources(ctx, v)
	if err != nil {
		return v, err
	}
	if err := r.links.Prefer(ctx, device, sources); err != nil {
		return v, err
	}
	connections, err := r.sockets.Connections(ctx)
	return v.hold(connections), err
}

// sources are the addresses of this host besides those on the interface, its
// primary ones first.
func (r *rules) sources(ctx context.Context, v vips) ([]netip.Addr, error) {
	primary, err := r.host.Primary()
	if err != nil {
		return nil, err
	}
	all, err := r.host.List(ctx)
	return slices.DeleteFunc(slices.Concat(primary, all), func(a netip.Addr) bool {
		return a.IsLoopback() || slices.Contains(v.Addrs, a)
	}), err
}

func (r *rules) removeDevice(ctx context.Context, v vips) error {
	if !v.Device {
		return nil
	}
	return r.links.Delete(ctx, device)
}

// removeChains removes from all tables of iptables that have something, each
// variant by itself, enters what happened, and reports whether all is gone.
func (r *rules) removeChains(ctx context.Context, chains []iptables.Removal, a *Account) (all bool, err error) {
	all = true
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFT} {
		part := slices.DeleteFunc(slices.Clone(chains), func(c iptables.Removal) bool { return c.Table.Variant != v })
		if len(part) == 0 {
			continue
		}
		e := r.chains.Remove(ctx, part...)
		all = all && e == nil
		switch {
		case e == nil:
			a.Removed, a.Lost = append(a.Removed, chainEntries(part)...), append(a.Lost, neighbours(part)...)
		case errors.Is(e, iptables.ErrBeyondReach):
			a.Left = append(a.Left, r.beyondReach(part, e)...)
		default:
			err = errors.Join(err, e)
		}
	}
	return all, err
}

// beyondReach says what stays in legacy tables, why, and what removes it.
func (r *rules) beyondReach(chains []iptables.Removal, why error) []Entry {
	entries := chainEntries(chains)
	for i := range entries {
		entries[i].What += fmt.Sprintf(" (%v)", why)
		entries[i].Remedy = r.remedy
	}
	return entries
}

// removeSets destroys ipsets and returns those that are gone. One that cannot be
// does not keep it from the others.
func (r *rules) removeSets(ctx context.Context, names []string) (gone []string, err error) {
	for _, name := range names {
		if e := r.sets.Destroy(ctx, name); e != nil {
			err = errors.Join(err, e)
			continue
		}
		gone = append(gone, name)
	}
	return gone, err
}
