package takeover

import (
	"context"
	"errors"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/kernel/xtables"
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
	var errs [3]error
	if len(f.tables) > 0 {
		errs[0] = a.note(r.removeTables(ctx, f), tableEntry(f.tables))
	}
	gone, err := r.removeServers(ctx, f.vips)
	errs[1] = err
	if len(f.vips.Busy) > 0 {
		if e := gone.entry(); e.Count > 0 {
			a.Removed = append(a.Removed, e)
		}
		a.Left = append(a.Left, f.vips.left()...)
		return a, errors.Join(errs[:]...)
	}
	if err == nil {
		gone, errs[1] = r.removeDevice(ctx, f.vips, gone)
	}
	errs[2] = r.removeChains(ctx, f.chains)
	if errs[2] == nil {
		gone.Sets, errs[2] = r.removeSets(ctx, f.vips.Sets) // rules referred to them
		a.Removed = append(a.Removed, chainEntries(f.chains)...)
	}
	if e := gone.entry(); e.Count > 0 {
		a.Removed = append(a.Removed, e)
	}
	a.Left = append(a.Left, f.vips.left()...)
	return a, errors.Join(errs[:]...)
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
	if err := r.tables.Close(ctx, f.tables...); err != nil {
		return err
	}
	r.pause()
	var names []nft.Table
	for _, t := range f.tables {
		names = append(names, t.Table)
	}
	return r.tables.Delete(ctx, names...)
}

// removeServers removes the idle virtual servers and the addresses that nobody
// needs, and returns what of them is gone.
func (r *rules) removeServers(ctx context.Context, v vips) (gone vips, err error) {
	for _, s := range v.Idle {
		if err := r.servers.Delete(ctx, s); err != nil {
			return gone, err
		}
		gone.Idle = append(gone.Idle, s)
	}
	if !v.Device {
		return gone, nil
	}
	return gone, r.links.RemoveAddresses(ctx, device, v.unused())
}

func (r *rules) removeDevice(ctx context.Context, v, gone vips) (vips, error) {
	if !v.Device {
		return gone, nil
	}
	if err := r.links.Delete(ctx, device); err != nil {
		return gone, err
	}
	gone.Device, gone.Addrs = true, v.Addrs
	return gone, nil
}

// removeChains removes from all tables of iptables that have something.
func (r *rules) removeChains(ctx context.Context, chains []xtables.Removal) error {
	if len(chains) == 0 {
		return nil
	}
	return r.chains.Remove(ctx, chains...)
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
