package takeover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Access to the kernel, as far as this package needs it.
type (
	chainKernel interface {
		Outlines(ctx context.Context, rules func(chain string) bool) ([]iptables.Outline, error)
		Remove(ctx context.Context, removals ...iptables.Removal) error
	}
	tableKernel interface {
		Find(ctx context.Context, names ...nft.Table) ([]nft.Outline, error)
		Prune(ctx context.Context, cuts []nft.Cut) error
		Delete(ctx context.Context, names ...nft.Table) error
	}
	ipvsKernel interface {
		Servers(ctx context.Context) ([]ipvs.Server, error)
		Connections(ctx context.Context, s ipvs.Server) (int, error)
		Delete(ctx context.Context, s ipvs.Server) error
	}
	ipsetKernel interface {
		Names(ctx context.Context) ([]string, error)
		List(ctx context.Context, names []string) (map[string]*ipset.Set, error)
		Destroy(ctx context.Context, name string) error
	}
	linkKernel interface {
		Addresses(ctx context.Context, name string) ([]netip.Addr, error)
		Prefer(ctx context.Context, name string, sources []netip.Addr) error
		RemoveAddresses(ctx context.Context, name string, addrs []netip.Addr) error
		Delete(ctx context.Context, name string) error
	}
	addressKernel interface {
		List(ctx context.Context) ([]netip.Addr, error)
		Primary() ([]netip.Addr, error)
	}
	socketKernel interface {
		Local(ctx context.Context) (map[netip.Addr]int, error)
	}
)

// rules finds and removes kube-proxy's rules in the kernel.
type rules struct {
	chains  chainKernel
	tables  tableKernel
	servers ipvsKernel
	sets    ipsetKernel
	links   linkKernel
	host    addressKernel
	sockets socketKernel

	ours      []Mechanism
	removable func(chain string) bool // selects chains of iptables
	remedy    string                  // how a person removes legacy rules that this process cannot remove
	pause     func()                  // waits while a packet is on its way through this node
}

func newRules(o Options) *rules {
	return &rules{
		chains:  iptables.NewKernel(iptables.Options{NetNS: o.NetNS}),
		tables:  tables{netns: o.NetNS},
		servers: ipvs.New(o.NetNS),
		sets:    ipset.New(o.NetNS),
		links:   rtnl.New(o.NetNS),
		host:    address.New(address.Options{NetNS: o.NetNS}),
		sockets: sockdiag.Node{NetNS: o.NetNS},
		ours:    o.Ours, removable: kubechain.Proxy,
		pause: func() { time.Sleep(packetTime) },
	}
}

// tables finds and deletes tables of nf_tables that other programs made. A socket is open only during a call.
type tables struct{ netns int }

func (t tables) use(do func(*nft.Conn) error) error {
	conn, err := nft.Open(nft.Options{NetNS: t.netns})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is answered
	return do(conn)
}

// Find returns the tables that exist, without their rules.
func (t tables) Find(ctx context.Context, names ...nft.Table) (found []nft.Outline, err error) {
	err = t.use(func(conn *nft.Conn) error {
		found, err = conn.Outline(ctx, names, nft.NoRules)
		return err
	})
	return found, err
}

// Prune deletes chains of tables, in one transaction.
func (t tables) Prune(ctx context.Context, cuts []nft.Cut) error {
	return t.use(func(conn *nft.Conn) error { return conn.Prune(ctx, cuts) })
}

// Delete deletes tables with all they hold, in one transaction.
func (t tables) Delete(ctx context.Context, names ...nft.Table) error {
	return t.use(func(conn *nft.Conn) error { return conn.DeleteTables(ctx, names...) })
}

// findings are kube-proxy's rules.
type findings struct {
	tables []nft.Outline
	chains []iptables.Removal
	vips   vips
}

// find finds kube-proxy's rules. With an error there may be more than it returns.
func (r *rules) find(ctx context.Context) (f findings, err error) {
	var tableErr, chainErr, vipErr error
	if !r.isOurs(NFTables) {
		four, six := nft.Table{Family: nft.IP4, Name: name}, nft.Table{Family: nft.IP6, Name: name}
		f.tables, tableErr = r.tables.Find(ctx, four, six)
	}
	f.chains, chainErr = r.findChains(ctx)
	if !r.isOurs(IPVS) {
		f.vips, vipErr = r.findVIPs(ctx)
	}
	return f, errors.Join(tableErr, chainErr, vipErr)
}

func (r *rules) isOurs(m Mechanism) bool { return slices.Contains(r.ours, m) }

// shared reports whether a kube-proxy in this mode writes Sluice's chains: it chooses the variant as Sluice does.
func (r *rules) shared(mode string) bool {
	// Mode ipvs has KUBE-SERVICES and KUBE-POSTROUTING too.
	if !slices.Contains([]string{"iptables", "ipvs", "userspace"}, mode) {
		return false
	}
	return r.isOurs(IPTablesLegacy) || r.isOurs(IPTablesNFT)
}

// findChains finds the rules of the iptables and ipvs modes in iptables.
func (r *rules) findChains(ctx context.Context) ([]iptables.Removal, error) {
	if r.isOurs(IPTablesLegacy) && r.isOurs(IPTablesNFT) {
		return nil, nil
	}
	all, err := r.chains.Outlines(ctx, withRules)
	isOurs := func(c iptables.Removal) bool { return r.isOurs(mechanism(c)) }
	return slices.DeleteFunc(leftovers(all, r.removable), isOurs), err
}

func mechanism(c iptables.Removal) Mechanism {
	if c.Table.Variant == iptables.Legacy {
		return IPTablesLegacy
	}
	return IPTablesNFT
}

// findVIPs finds virtual servers, addresses and sets of mode ipvs. Without its interface no server is surely its own.
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
	addrs, err := r.links.Addresses(ctx, ServiceDevice)
	if errors.Is(err, rtnl.ErrNotFound) {
		return v, nil
	}
	for _, a := range addrs {
		if !a.IsLinkLocalUnicast() { // which the kernel adds
			v.Addrs = append(v.Addrs, a)
		}
	}
	if err != nil {
		return v, err
	}
	v.Device = true
	if err = r.findMembers(ctx, &v); err == nil {
		err = r.findServers(ctx, &v)
	}
	v.Unknown = err != nil
	return v, err
}

// findMembers finds the addresses whose packets Sluice's mode ipvs marks, the frontends for clients outside of the
// cluster, which may be at an address of the node, and the NodePorts.
func (r *rules) findMembers(ctx context.Context, v *vips) error {
	marks := strings.TrimPrefix(shortCuts, "KUBE-")
	frontends := []string{marks, "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER"}
	names := slices.DeleteFunc(slices.Clone(v.Sets), func(name string) bool {
		return !strings.Contains(name, nodePortSet) && !slices.ContainsFunc(frontends, func(set string) bool {
			return strings.HasSuffix(name, "-"+set)
		})
	})
	found, err := r.sets.List(ctx, names)
	v.Marked, v.Frontends, v.NodePorts = map[uint32][]netip.Addr{}, map[ipvs.Server]bool{}, map[uint16]bool{}
	for name, set := range found {
		for m, mark := range set.Members {
			switch {
			case strings.HasSuffix(name, marks):
				v.Marked[mark] = append(v.Marked[mark], m.Addr)
			case strings.Contains(name, nodePortSet):
				v.NodePorts[m.Port] = true
			default:
				v.Frontends[ipvs.Server{Addr: m.Addr, Protocol: m.Protocol, Port: m.Port}] = true
			}
		}
	}
	return err
}

func (r *rules) findServers(ctx context.Context, v *vips) error {
	servers, err := r.servers.Servers(ctx)
	if err != nil {
		return err
	}
	local, err := r.host.List(ctx)
	if err != nil {
		return err
	}
	var owned []ipvs.Server
	owned, v.Foreign = v.split(servers, local)
	for _, s := range owned {
		n, err := r.servers.Connections(ctx, s)
		if err != nil {
			return err
		}
		if n > 0 {
			v.Busy = append(v.Busy, s)
		} else {
			v.Idle = append(v.Idle, s)
		}
	}
	return nil
}

// entries returns an entry for each mechanism that has rules, sorted.
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

func chainEntries(all []iptables.Removal) []Entry {
	found := map[Mechanism]Entry{}
	for _, c := range all {
		m := mechanism(c)
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
	for _, m := range slices.Sorted(maps.Keys(found)) {
		out = append(out, found[m])
	}
	return out
}

// leftovers returns the chains of which is returns true, and the rules of other chains that jump to them, for each
// table that has any.
//
// Chains of other programs, such as KUBE-FIREWALL of kubelet, stay without their rules that jump to kube-proxy's, with
// one exception: network plugins masquerade packets by a jump to KUBE-MARK-MASQ (portmap's externalSetMarkChain), as
// kube-proxy's documents advise. Where they do, the chains for it stay.
func leftovers(all []iptables.Outline, is func(chain string) bool) []iptables.Removal {
	var found []iptables.Removal
	for _, t := range all {
		r := iptables.Removal{Table: t.TableID, Handle: t.Handle}
		kept := usedByOthers(t)
		removable := func(name string) bool { return is(name) && !slices.Contains(kept, name) }
		for _, chain := range t.Chains {
			if !chain.Builtin && removable(chain.Name) {
				r.Chains = append(r.Chains, chain.Name)
				continue
			}
			for _, rule := range chain.Rules {
				if rule.Jump && removable(rule.Target) {
					r.Rules = append(r.Rules, iptables.ChainRule{Chain: chain.Name, RuleOutline: rule})
				}
			}
		}
		if r.Size() > 0 {
			found = append(found, r)
		}
	}
	return found
}

// withRules selects the chains whose rules leftovers needs: the chains that may stay.
func withRules(chain string) bool {
	return !kubechain.Proxy(chain) || slices.Contains(markChains(), chain)
}

// markChains returns the chains by which other programs masquerade packets.
func markChains() []string { return []string{"KUBE-MARK-MASQ", "KUBE-POSTROUTING"} }

// usedByOthers returns the chains of a table by which other programs masquerade packets.
func usedByOthers(t iptables.Outline) []string {
	for _, chain := range t.Chains {
		if chain.Builtin || kubechain.Proxy(chain.Name) {
			continue
		}
		for _, rule := range chain.Rules {
			if rule.Jump && rule.Target == "KUBE-MARK-MASQ" {
				return markChains()
			}
		}
	}
	return nil
}
