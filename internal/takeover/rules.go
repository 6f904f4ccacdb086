package takeover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/text"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/internal/kernel/link"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/kubechain"
)

// The doors to the kernel, as far as they are needed here.
type (
	chainDoor interface {
		Outlines(ctx context.Context, rules func(chain string) bool) ([]iptables.Outline, error)
		Remove(ctx context.Context, removals ...iptables.Removal) error
	}
	tableDoor interface {
		Find(ctx context.Context, names ...nft.Table) ([]nft.Outline, error)
		Close(ctx context.Context, names ...nft.Table) error
		Delete(ctx context.Context, names ...nft.Table) error
	}
	serverDoor interface {
		Servers(ctx context.Context) ([]ipvs.Server, error)
		Connections(ctx context.Context, s ipvs.Server) (int, error)
		Delete(ctx context.Context, s ipvs.Server) error
	}
	setDoor interface {
		Names(ctx context.Context) ([]string, error)
		Destroy(ctx context.Context, name string) error
	}
	linkDoor interface {
		Addresses(ctx context.Context, name string) ([]netip.Addr, error)
		Prefer(ctx context.Context, name string, sources []netip.Addr) error
		RemoveAddresses(ctx context.Context, name string, addrs []netip.Addr) error
		Delete(ctx context.Context, name string) error
	}
	hostDoor interface {
		List(ctx context.Context) ([]netip.Addr, error)
		Primary() ([]netip.Addr, error)
	}
	socketDoor interface {
		Connections(ctx context.Context) (map[netip.Addr]int, error)
	}
)

// rules are those of kube-proxy in the kernel.
type rules struct {
	chains  chainDoor
	tables  tableDoor
	servers serverDoor
	sets    setDoor
	links   linkDoor
	host    hostDoor
	sockets socketDoor

	ours      []Mechanism
	remedy    string                                  // what removes legacy rules that cannot be removed from here
	nodePorts func(context.Context) ([]uint16, error) // nil: the usual range
	pause     func()                                  // as long as a packet is on its way through this node
}

// findings are what kube-proxy left.
type findings struct {
	tables []nft.Outline
	chains []iptables.Removal
	vips   vips
}

// find looks for what kube-proxy left. With an error there may be more than what
// it returns.
func (r *rules) find(ctx context.Context) (findings, error) {
	var f findings
	var errs [3]error
	if !r.isOurs(NFTables) {
		f.tables, errs[0] = r.tables.Find(ctx, kubeTables()...)
	}
	f.chains, errs[1] = r.findChains(ctx)
	if !r.isOurs(IPVS) {
		f.vips, errs[2] = r.findVIPs(ctx)
	}
	return f, errors.Join(errs[:]...)
}

func (r *rules) isOurs(m Mechanism) bool { return slices.Contains(r.ours, m) }

// shared reports whether a kube-proxy in a mode writes chains that are ours. Which
// variant of iptables it runs is not known; it chooses as Sluice does.
func (r *rules) shared(mode string) bool {
	if mode != "iptables" && mode != "ipvs" { // which has KUBE-SERVICES and KUBE-POSTROUTING too
		return false
	}
	return r.isOurs(IPTablesLegacy) || r.isOurs(IPTablesNFT)
}

// kubeTables are those of kube-proxy's nftables mode.
func kubeTables() []nft.Table {
	const name = "kube-proxy"
	return []nft.Table{{Family: nft.IP4, Name: name}, {Family: nft.IP6, Name: name}}
}

// findChains finds what the iptables and ipvs modes left in iptables.
func (r *rules) findChains(ctx context.Context) ([]iptables.Removal, error) {
	if r.isOurs(IPTablesLegacy) && r.isOurs(IPTablesNFT) {
		return nil, nil
	}
	all, err := r.chains.Outlines(ctx, withRules)
	found := leftovers(all)
	return slices.DeleteFunc(found, func(c iptables.Removal) bool { return r.isOurs(variant(c)) }), err
}

func variant(c iptables.Removal) Mechanism {
	if c.Table.Variant == iptables.Legacy {
		return IPTablesLegacy
	}
	return IPTablesNFT
}

// findVIPs finds what the ipvs mode left besides. Without its interface no
// virtual server can be known as kube-proxy's.
func (r *rules) findVIPs(ctx context.Context) (vips, error) {
	var v vips
	names, err := r.sets.Names(ctx)
	if err != nil {
		return vips{}, err
	}
	for _, name := range names {
		if kubeSet(name) {
			v.Sets = append(v.Sets, name)
		}
	}
	v.Addrs, err = r.links.Addresses(ctx, device)
	if errors.Is(err, link.ErrNotFound) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	v.Device = true
	v, err = r.findServers(ctx, v)
	v.Unknown = err != nil
	return v, err
}

func (r *rules) findServers(ctx context.Context, v vips) (vips, error) {
	servers, err := r.servers.Servers(ctx)
	if err != nil {
		return v, err
	}
	local, err := r.host.List(ctx)
	if err != nil {
		return v, err
	}
	nodePort := defaultNodePort
	if r.nodePorts != nil {
		ports, err := r.nodePorts(ctx)
		if err != nil {
			return v, err
		}
		nodePort = among(ports)
	}
	theirs, foreign := v.owned(servers, local, nodePort)
	v.Foreign = foreign
	for _, s := range theirs {
		n, err := r.servers.Connections(ctx, s)
		if err != nil {
			return v, err
		}
		if n > 0 {
			v.Busy = append(v.Busy, busy{s, n})
			continue
		}
		v.Idle = append(v.Idle, s)
	}
	return v, nil
}

// atOnce is the same, without waiting for connections to end.
func (f findings) atOnce() findings {
	f.vips = f.vips.atOnce()
	return f
}

// entries are what was found, sorted by mechanism; none when there is nothing.
func (f findings) entries() []Entry {
	out := chainEntries(f.chains)
	if e := f.vips.entry(); e.Count > 0 {
		out = append(out, e)
	}
	if e := tableEntry(f.tables); e.Count > 0 {
		out = append(out, e)
	}
	return out
}

func tableEntry(all []nft.Outline) Entry {
	e := Entry{Mechanism: NFTables}
	var parts []string
	for _, t := range all {
		e.Count += 1 + len(t.Chains)
		parts = append(parts, fmt.Sprintf("table %s with %s", t.Table, text.Count(len(t.Chains), "chain")))
	}
	e.What = strings.Join(parts, ", ")
	return e
}

// chainEntries are one entry for each variant.
func chainEntries(all []iptables.Removal) []Entry {
	found := map[Mechanism]Entry{}
	for _, c := range all {
		m := variant(c)
		e := found[m]
		if e.What != "" {
			e.What += ", "
		}
		e.Mechanism, e.Count = m, e.Count+c.Size()
		e.What += text.Count(len(c.Chains), "chain")
		if n := len(c.Rules); n > 0 {
			e.What += " and " + text.Count(n, "rule")
		}
		e.What += " in " + c.Table.String()
		found[m] = e
	}
	var out []Entry
	for m, e := range found {
		e.MayBeOwn = !slices.ContainsFunc(all, func(c iptables.Removal) bool {
			return variant(c) == m && slices.ContainsFunc(c.Chains, kubechain.KubeProxyAlone)
		})
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Mechanism, b.Mechanism) })
	return out
}
