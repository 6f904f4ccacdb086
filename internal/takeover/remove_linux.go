package takeover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// remove removes the findings, while Sluice's own rules are in force. A failure in one mechanism does not affect the
// others.
//
// No connection is lost. Conntrack continues to translate existing ones. New ones meet either all of kube-proxy's rules
// or only Sluice's. IPVS keeps connections in its own memory, and ends them with their virtual server. So a virtual
// server with connections stays until a later call, with everything that their packets need. New connections do not
// reach it, as Sluice translates earlier.
func (r *rules) remove(ctx context.Context, f findings) (a Account, err error) {
	if len(f.tables) > 0 {
		if err = r.removeTables(ctx, f); err == nil {
			a.Removed = append(a.Removed, tableEntry(f.tables))
		}
	}
	v, gone, serverErr := r.removeServers(ctx, f.vips)
	err = errors.Join(err, serverErr)
	if v.inUse() {
		err = errors.Join(err, r.removeChains(ctx, inMangle(f.chains), &a))
	} else {
		if serverErr == nil {
			deviceErr := r.removeDevice(ctx, v)
			gone.Addrs, gone.Device = v.Addrs, v.Device && deviceErr == nil
			err = errors.Join(err, deviceErr)
		}
		chainErr := r.removeChains(ctx, f.chains, &a)
		err = errors.Join(err, chainErr)
		if chainErr == nil { // no rule refers to the sets any more
			var setErr error
			gone.Sets, setErr = r.removeSets(ctx, v.Sets)
			err = errors.Join(err, setErr)
		}
	}
	if e := gone.entry(); e.Count > 0 {
		a.Removed = append(a.Removed, e)
	}
	a.Left = append(a.Left, v.left()...)
	return a, err
}

// inMangle returns the chains in table mangle. Those of Sluice's mode ipvs come before the rules of its present mode
// and match sets that nobody updates now: they would drop packets, or mark them for a virtual server.
func inMangle(chains []iptables.Removal) []iptables.Removal {
	return slices.DeleteFunc(slices.Clone(chains), func(c iptables.Removal) bool { return c.Table.Name != "mangle" })
}

// removeTables first deletes the chains that packets enter before they are routed. A packet between two chains of a
// table then still meets the second one, which translates its source.
func (r *rules) removeTables(ctx context.Context, f findings) error {
	var names []nft.Table
	var entrances []nft.Cut
	for _, t := range f.tables {
		cut := nft.Cut{Table: t.Table, Handle: t.Handle}
		for _, c := range t.Chains {
			if c.Entrance() {
				cut.Chains = append(cut.Chains, c.Name)
			}
		}
		names, entrances = append(names, t.Table), append(entrances, cut)
	}
	if err := r.tables.Prune(ctx, entrances); err != nil {
		return err
	}
	r.pause()
	return r.tables.Delete(ctx, names...)
}

// removeServers removes the idle virtual servers and the addresses that no connection needs. It returns v with the
// addresses in use, and the removed entries.
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
	if !v.Device || v.Immediate {
		return v, gone, nil
	}
	v, err = r.hold(ctx, v)
	if err != nil {
		return v, gone, err
	}
	return v, gone, r.links.RemoveAddresses(ctx, ServiceDevice, v.unused())
}

// hold finds the addresses from which programs of this host have connections: those would get no answers without their
// address on the interface. First it makes later connections use another source address.
func (r *rules) hold(ctx context.Context, v vips) (vips, error) {
	sources, err := r.sources(ctx, v)
	if err != nil {
		return v, err
	}
	if err := r.links.Prefer(ctx, ServiceDevice, sources); err != nil {
		return v, err
	}
	connections, err := r.sockets.Local(ctx)
	v.Held = slices.DeleteFunc(slices.Clone(v.Addrs), func(a netip.Addr) bool { return connections[a] == 0 })
	return v, err
}

// sources returns the addresses of this host except those on the interface, its primary ones first.
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
	return r.links.Delete(ctx, ServiceDevice)
}

// removeChains removes chains and rules of iptables, each variant separately, and adds them to the account.
func (r *rules) removeChains(ctx context.Context, chains []iptables.Removal, a *Account) (err error) {
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFT} {
		part := slices.DeleteFunc(slices.Clone(chains), func(c iptables.Removal) bool { return c.Table.Variant != v })
		if len(part) == 0 {
			continue
		}
		entries, failed := chainEntries(part), r.chains.Remove(ctx, part...)
		switch {
		case failed == nil:
			a.Removed = append(a.Removed, entries...)
		case errors.Is(failed, iptables.ErrBeyondReach):
			err = errors.Join(err, fmt.Errorf("%w (%s): %w; %s", errBeyondReach, entries[0].What, failed, r.remedy))
		default:
			err = errors.Join(err, failed)
		}
	}
	return err
}

// removeSets destroys ipsets and returns the destroyed ones. It continues after a failure.
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

// Cleanup removes kube-proxy's rules of all modes at once, even if they still have connections, and the rules of
// Sluice's mode iptables, whose chains have the same names. If it cannot remove some, it removes the rest, and the
// error has the reason and the remedy. While a kube-proxy runs, Cleanup keeps the rules that it may use, so that a node
// returns to kube-proxy without a gap.
func Cleanup(ctx context.Context, o Options) (Account, error) {
	r := newRules(o)
	r.remedy = remedyCleanup
	return cleanup(ctx, r, newDetector(o), o)
}

func cleanup(ctx context.Context, r *rules, d *detector, o Options) (Account, error) {
	var kubeProxy *KubeProxy
	if !o.IgnoreKubeProxy {
		kubeProxy, _ = d.detect(ctx) // after an error none is known
	}
	if kubeProxy != nil {
		r.spare(kubeProxy.Mode)
	}
	found, foundErr := r.find(ctx)
	v := &found.vips
	v.Idle, v.Busy, v.Immediate = slices.Concat(v.Idle, v.Busy), nil, true
	account, err := r.remove(ctx, found)
	if kubeProxy != nil && errors.Is(err, iptables.ErrInUse) {
		account.Left = append(account.Left, "chains to which rules lead that kube-proxy has not replaced yet")
		err = nil
	}
	account.KubeProxy = kubeProxy
	return account, errors.Join(foundErr, err)
}

// spare keeps the rules that a running kube-proxy in this mode may use. In mode nftables it uses no chain of iptables.
// In other modes it uses no chain that only Sluice makes, and chains of mode userspace only in that mode. A kube-proxy
// that reports no mode may use all other chains.
func (r *rules) spare(mode string) {
	r.ours = append(slices.Clone(r.ours), NFTables, IPVS)
	if mode == "nftables" {
		return
	}
	r.removable = func(chain string) bool {
		return kubechain.SluiceAlone(chain) || mode != "" && mode != "userspace" && kubechain.Userspace(chain)
	}
}

// Search looks for a running kube-proxy and its rules, and changes nothing. With an error there may be more.
func Search(ctx context.Context, o Options) (Found, error) {
	return search(ctx, newRules(o), newDetector(o))
}

func search(ctx context.Context, r *rules, d *detector) (Found, error) {
	p, err := d.detect(ctx)
	f, findErr := r.find(ctx)
	return Found{KubeProxy: p, Same: p != nil && r.shared(p.Mode), Rules: f.entries()}, errors.Join(err, findErr)
}
