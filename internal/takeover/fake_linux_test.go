package takeover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/testing/iptablestest"
)

// node is a kernel in memory with the parts that a take-over uses. It refuses the requests that a real kernel
// refuses, and records the operations in their order.
type node struct {
	chains    *iptablestest.Kernel
	tables    []nft.Outline
	servers   map[ipvs.Server]int // with their connections
	order     []ipvs.Server
	sets      []string
	nodePorts []uint16              // of the set KUBE-NODE-PORT-TCP
	frontends []ipset.Member        // of the set KUBE-EXTERNAL-IP
	marks     map[netip.Addr]uint32 // in a set of Sluice's
	vips      []netip.Addr          // on kube-ipvs0; nil: there is none
	others    []netip.Addr          // addresses of other interfaces
	sockets   map[netip.Addr]int
	source    []netip.Addr // that programs prefer
	broken    map[string]error
	done      []string
}

func (n *node) do(format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	verb, _, _ := strings.Cut(what, " ")
	if err := n.broken[verb]; err != nil {
		return err
	}
	if verb != "read" {
		n.done = append(n.done, what)
	}
	return nil
}

// rules are the doors to it.
func (n *node) rules() *rules {
	if n.chains == nil {
		n.chains = iptablestest.NewKernel()
	}
	return &rules{
		chains: chainsFake{n}, tables: tablesFake{n}, servers: serversFake{n}, sets: setsFake{n},
		links: linksFake{n}, host: hostFake{n}, sockets: socketsFake{n},
		removable: kubechain.Proxy, pause: func() { _ = n.do("pause") },
	}
}

type chainsFake struct{ *node }

func (f chainsFake) Outlines(ctx context.Context, rules func(chain string) bool) ([]iptables.Outline, error) {
	if err := f.do("read chains"); err != nil {
		return nil, err
	}
	return f.chains.Outlines(ctx, rules)
}

func (f chainsFake) Remove(ctx context.Context, removals ...iptables.Removal) error {
	if err := f.do("unchain"); err != nil {
		return err
	}
	return f.chains.Remove(ctx, removals...)
}

type tablesFake struct{ *node }

func (f tablesFake) Find(_ context.Context, names ...nft.Table) ([]nft.Outline, error) {
	found := slices.DeleteFunc(slices.Clone(f.tables), func(t nft.Outline) bool {
		return !slices.Contains(names, t.Table)
	})
	return found, f.do("read tables")
}

func (f tablesFake) Prune(_ context.Context, all []nft.Cut) error {
	for _, cut := range all {
		if err := f.do("close %s", cut.Table); err != nil {
			return err
		}
	}
	return nil
}

func (f tablesFake) Delete(_ context.Context, names ...nft.Table) error {
	for _, name := range names {
		if err := f.do("delete %s", name); err != nil {
			return err
		}
	}
	f.node.tables = slices.DeleteFunc(slices.Clone(f.node.tables), func(t nft.Outline) bool {
		return slices.Contains(names, t.Table)
	})
	return nil
}

type serversFake struct{ *node }

func (f serversFake) Servers(context.Context) ([]ipvs.Server, error) {
	return f.node.order, f.do("read servers")
}

func (f serversFake) Connections(_ context.Context, s ipvs.Server) (int, error) {
	return f.node.servers[s], f.do("read connections")
}

func (f serversFake) Delete(_ context.Context, s ipvs.Server) error {
	delete(f.node.servers, s)
	f.node.order = slices.DeleteFunc(slices.Clone(f.node.order), func(o ipvs.Server) bool { return o == s })
	return f.do("stop %s", s)
}

type setsFake struct{ *node }

func (f setsFake) Names(context.Context) ([]string, error) { return f.node.sets, f.do("read sets") }

func (f setsFake) List(context.Context, []string) (map[string]*ipset.Set, error) {
	set := &ipset.Set{Members: map[ipset.Member]uint32{}}
	for a, mark := range f.marks {
		set.Members[ipset.Member{Addr: a}] = mark
	}
	nodePorts := &ipset.Set{Members: map[ipset.Member]uint32{}}
	for _, port := range f.nodePorts {
		nodePorts.Members[ipset.Member{Port: port}] = 0
	}
	frontends := &ipset.Set{Members: map[ipset.Member]uint32{}}
	for _, m := range f.frontends {
		frontends.Members[m] = 0
	}
	sets := map[string]*ipset.Set{
		"KUBE-SLUICE-SHORT-CUT": set, "KUBE-EXTERNAL-IP": frontends, "KUBE-NODE-PORT-TCP": nodePorts,
	}
	return sets, f.do("read members")
}

// Destroy refuses while there are rules of kube-proxy's, which refer to the sets.
func (f setsFake) Destroy(ctx context.Context, name string) error {
	all, _ := f.chains.Outlines(ctx, iptables.AllRules)
	if len(leftovers(all, kubechain.Proxy)) > 0 {
		return errors.New("rules refer to it")
	}
	f.node.sets = slices.DeleteFunc(slices.Clone(f.node.sets), func(s string) bool { return s == name })
	return f.do("destroy %s", name)
}

type linksFake struct{ *node }

func (f linksFake) Addresses(_ context.Context, name string) ([]netip.Addr, error) {
	if f.vips == nil || name != "kube-ipvs0" {
		return nil, rtnl.ErrNotFound
	}
	return slices.Clone(f.vips), f.do("read addresses")
}

func (f linksFake) Prefer(_ context.Context, _ string, sources []netip.Addr) error {
	f.source = sources
	return f.do("prefer %s", join(sources))
}

func (f linksFake) RemoveAddresses(_ context.Context, name string, addrs []netip.Addr) error {
	f.node.vips = slices.DeleteFunc(f.vips, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
	return f.do("unaddress %s %s", name, join(addrs))
}

func (f linksFake) Delete(_ context.Context, name string) error {
	f.node.vips = nil
	return f.do("unlink %s", name)
}

func join[S fmt.Stringer](all []S) string {
	var out []string
	for _, s := range all {
		out = append(out, s.String())
	}
	return strings.Join(out, " ")
}

type hostFake struct{ *node }

func (f hostFake) List(context.Context) ([]netip.Addr, error) {
	return slices.Concat(f.others, f.vips), f.do("read host")
}

func (f hostFake) Primary() ([]netip.Addr, error) {
	return slices.DeleteFunc(slices.Clone(f.others), netip.Addr.IsLoopback), nil
}

type socketsFake struct{ *node }

func (f socketsFake) Local(context.Context) (map[netip.Addr]int, error) {
	return maps.Clone(f.sockets), f.do("read sockets")
}
