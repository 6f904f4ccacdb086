package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/testing/ipvstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// fakeKernel has all mechanisms in memory.
type fakeKernel struct {
	servers *ipvstest.Servers
	sets    *ipvstest.Sets
	links   *ipvstest.Interface
	chains  *fakeChains
}

func newFake() *fakeKernel {
	return &fakeKernel{ipvstest.NewServers(), ipvstest.NewSets(), ipvstest.NewInterface(), newFakeChains()}
}

func (f *fakeKernel) kernel() Kernel { return Kernel{f.servers, f.sets, f.links, f.chains} }

// fakeChains are tables of iptables in memory. Each table of an input is committed as a whole.
type fakeChains struct {
	tables map[iptables.Table]iptables.Chains
	refuse iptables.Table // a table that accepts nothing
}

func newFakeChains() *fakeChains {
	f := &fakeChains{tables: map[iptables.Table]iptables.Chains{}}
	for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		for _, name := range tableNames() {
			chains := iptables.Chains{}
			for _, builtin := range []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"} {
				chains[builtin] = iptables.Chain{Policy: "ACCEPT"}
			}
			f.tables[iptables.Table{Family: family, Name: name}] = chains
		}
	}
	return f
}

func (f *fakeChains) Read(_ context.Context, t iptables.Table) (iptables.Chains, error) {
	return maps.Clone(f.tables[t]), nil
}

func (f *fakeChains) Watch(ctx context.Context, _ func(string) bool, subscribed func(), _ func(iptables.Edit)) error {
	subscribed()
	<-ctx.Done()
	return nil
}

// Restore refuses rules to chains that do not exist, and the deletion of chains in use.
func (f *fakeChains) Restore(_ context.Context, family iptables.Family, input []byte) error {
	var at iptables.Table
	var chains iptables.Chains
	committed := 0
	for line := range strings.Lines(string(input)) {
		line = strings.TrimSpace(line)
		verb, rest, _ := strings.Cut(line, " ")
		name, rule, _ := strings.Cut(rest, " ")
		c := chains[name]
		switch {
		case strings.HasPrefix(line, "*"):
			at = iptables.Table{Family: family, Name: line[1:]}
			chains = maps.Clone(f.tables[at])
			continue
		case strings.HasPrefix(line, ":"):
			name, c = verb[1:], iptables.Chain{Policy: "-"}
		case verb == "-A":
			c.Rules = append(slices.Clone(c.Rules), rule)
		case verb == "-I":
			c.Rules = append([]string{rule}, c.Rules...)
		case verb == "-D":
			i := slices.Index(c.Rules, rule)
			if i < 0 {
				return &iptables.RestoreError{Rule: line, Reason: "no such rule", Committed: committed}
			}
			c.Rules = slices.Delete(slices.Clone(c.Rules), i, i+1)
		case verb == "-X":
			delete(chains, name)
			continue
		case line == "COMMIT":
			err := consistent(chains)
			if at == f.refuse {
				err = &iptables.RestoreError{Rule: line, Reason: "refused"}
			}
			if err != nil {
				err.Committed = committed
				return err
			}
			f.tables[at] = chains
			committed++
			continue
		default:
			return &iptables.RestoreError{Rule: line, Reason: "unknown"}
		}
		chains[name] = c
	}
	return nil
}

func consistent(chains iptables.Chains) *iptables.RestoreError {
	for name, c := range chains {
		for _, rule := range c.Rules {
			to := iptables.Target(rule)
			if _, exists := chains[to]; strings.HasPrefix(to, "KUBE-") && !exists {
				return &iptables.RestoreError{Rule: name + " " + rule, Reason: "no chain"}
			}
		}
	}
	return nil
}

// String prints all chains except the kernel's own ones without rules.
func (f *fakeChains) String() string {
	var lines []string
	for t, chains := range f.tables {
		for name, c := range chains {
			if c.Policy == "-" {
				lines = append(lines, fmt.Sprintf("%d %s :%s\n", t.Family, t.Name, name))
			}
			for i, rule := range c.Rules {
				lines = append(lines, fmt.Sprintf("%d %s %s %03d %s\n", t.Family, t.Name, name, i, rule))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// faulty is a kernel whose reads and writes sometimes fail.
type faulty struct {
	k Kernel
	*planetest.Faults
}

func (f faulty) kernel() Kernel {
	return Kernel{
		faultyServers{f.k.Servers, f}, faultySets{f.k.Sets, f}, faultyLinks{f.k.Links, f}, faultyChains{f.k.Chains, f},
	}
}

type (
	faultyServers struct {
		Servers
		f faulty
	}
	faultySets struct {
		Sets
		f faulty
	}
	faultyLinks struct {
		Links
		f faulty
	}
	faultyChains struct {
		Chains
		f faulty
	}
)

func (s faultyServers) List(ctx context.Context) ([]ipvs.Listed, error) {
	if err := s.f.Faults.Read(); err != nil {
		return nil, err
	}
	return s.Servers.List(ctx)
}

// Apply makes the first half of the changes, and then may fail.
func (s faultyServers) Apply(ctx context.Context, changes []ipvs.Command) error {
	half := len(changes) / 2
	for _, part := range [][]ipvs.Command{changes[:half], changes[half:]} {
		if err := s.f.Write(func() error { return s.Servers.Apply(ctx, part) }); err != nil {
			return err
		}
	}
	return nil
}

func (s faultySets) List(ctx context.Context, names []string) (map[string]*ipset.Set, error) {
	if err := s.f.Faults.Read(); err != nil {
		return nil, err
	}
	return s.Sets.List(ctx, names)
}

func (s faultySets) Apply(ctx context.Context, changes []ipset.Command) error {
	half := len(changes) / 2
	for _, part := range [][]ipset.Command{changes[:half], changes[half:]} {
		if err := s.f.Write(func() error { return s.Sets.Apply(ctx, part) }); err != nil {
			return err
		}
	}
	return nil
}

func (l faultyLinks) Change(ctx context.Context, name string, add, remove []netip.Addr) error {
	return l.f.Write(func() error { return l.Links.Change(ctx, name, add, remove) })
}

func (c faultyChains) Restore(ctx context.Context, f iptables.Family, input []byte) error {
	return c.f.Write(func() error { return c.Chains.Restore(ctx, f, input) })
}
