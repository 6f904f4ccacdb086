package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// Outline is a table with all its chains, without the conditions of rules. In the legacy
// variant built-in chains come first; in the nft variant chains are in the order in which
// they were created.
type Outline struct {
	TableID
	Chains []ChainOutline
}

// ChainOutline is a chain with its rules in their order.
type ChainOutline struct {
	Name    string
	Builtin bool // a hook of the kernel leads here
	Rules   []RuleOutline
}

// RuleOutline is a rule without its conditions.
type RuleOutline struct {
	Target string // a chain, or a target such as "ACCEPT" or "DNAT"; empty: none
	Jump   bool   // Target is a chain, by jump or goto
}

// Kernel reads the tables of both variants in one network namespace without a program,
// and removes chains from them. It holds no resources.
type Kernel struct{ opts Options }

// NewKernel returns the tables of a namespace.
func NewKernel(o Options) *Kernel {
	o.fill()
	return &Kernel{opts: o}
}

// legacy calls fn for each legacy table that exists, in the namespace. It creates none.
func (k *Kernel) legacy(ctx context.Context, fn func(TableID, protocol) error) error {
	return netns.Do(k.opts.NetNS, func() error {
		for _, f := range []Family{IPv4, IPv6} {
			p := protocolOf(f)
			names, err := p.tables()
			if err != nil {
				return err
			}
			for _, name := range names {
				if err := ctx.Err(); err != nil {
					return err
				}
				id := TableID{Variant: Legacy, Family: f, Name: name}
				if err := fn(id, p); err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
			}
		}
		return nil
	})
}

// nft calls use with a connection to nf_tables, if the kernel has that.
func (k *Kernel) nft(use func(*nft.Conn) error) error {
	conn, err := nft.Open(nft.Options{NetNS: k.opts.NetNS})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // every request was answered
	return use(conn)
}

// Outlines returns all tables of both variants and families that exist. It creates none.
// In the nft variant these are the tables with the names that iptables uses, whatever
// program created them. It may leave out the rules of chains that are not selected, which
// saves most of the time in that variant.
func (k *Kernel) Outlines(ctx context.Context, rules func(chain string) bool) ([]Outline, error) {
	var all []Outline
	err := k.legacy(ctx, func(id TableID, p protocol) error {
		t, err := p.read(ctx, id.Name)
		if err == nil {
			all = append(all, t.outline(id))
		}
		return err
	})
	if err == nil {
		err = k.nft(func(conn *nft.Conn) error {
			tables, err := conn.Outline(ctx, nftTables(), func(_ nft.Table, chain string) bool { return rules(chain) })
			for _, t := range tables {
				all = append(all, outlineOf(t))
			}
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read iptables rules: %w%s", err, remedy(err))
	}
	return all, nil
}

// AllRules selects the rules of all chains.
func AllRules(string) bool { return true }

// nftTables are those of the nft variant.
func nftTables() []nft.Table {
	var all []nft.Table
	for _, f := range []nft.Family{nft.IP4, nft.IP6} {
		for _, name := range []string{"raw", "mangle", "nat", "filter", "security"} {
			all = append(all, nft.Table{Family: f, Name: name})
		}
	}
	return all
}

// inNFT names a table of the nft variant as nf_tables does.
func (id TableID) inNFT() nft.Table {
	if id.Family == IPv6 {
		return nft.Table{Family: nft.IP6, Name: id.Name}
	}
	return nft.Table{Family: nft.IP4, Name: id.Name}
}

// table names it within its variant.
func (id TableID) table() Table { return Table{id.Family, id.Name} }

// fromNFT names a table of nf_tables as iptables does.
func fromNFT(t nft.Table) TableID {
	id := TableID{Variant: NFT, Family: IPv4, Name: t.Name}
	if t.Family == nft.IP6 {
		id.Family = IPv6
	}
	return id
}

func outlineOf(t nft.Outline) Outline {
	o := Outline{TableID: fromNFT(t.Table)}
	for _, c := range t.Chains {
		chain := ChainOutline{Name: c.Name, Builtin: c.Base}
		for _, r := range c.Rules {
			chain.Rules = append(chain.Rules, RuleOutline{Target: r.Target, Jump: r.Jump})
		}
		o.Chains = append(o.Chains, chain)
	}
	return o
}

// Exists reports whether a table exists. Unlike PROGRAM-save of the legacy variant it
// creates none.
func (k *Kernel) Exists(ctx context.Context, id TableID) (bool, error) {
	return k.has(ctx, id, "")
}

// HasChain reports whether a table exists and has a chain. In the nft variant the
// cost does not depend on what the table holds.
func (k *Kernel) HasChain(ctx context.Context, id TableID, chain string) (bool, error) {
	return k.has(ctx, id, chain)
}

func (k *Kernel) has(ctx context.Context, id TableID, chain string) (found bool, err error) {
	if id.Variant == NFT {
		err = k.nft(func(conn *nft.Conn) error {
			found, err = conn.Has(ctx, id.inNFT(), chain)
			return err
		})
	} else {
		err = k.legacy(ctx, func(table TableID, p protocol) error {
			if table != id || chain == "" {
				found = found || table == id
				return nil
			}
			t, err := p.read(ctx, id.Name)
			if err == nil {
				found = slices.ContainsFunc(t.chains, func(c legacyChain) bool { return c.name == chain })
			}
			return err
		})
	}
	if err != nil {
		return false, fmt.Errorf("look for %s %s: %w%s", id, chain, err, remedy(err))
	}
	return found, nil
}

// LegacyRules returns how many rules and chains have been added to the legacy tables. Its
// cost does not depend on their number.
func (k *Kernel) LegacyRules(ctx context.Context) (int, error) {
	stamps, err := k.Stamps(ctx)
	total := 0
	for _, s := range stamps {
		total += s.rules()
	}
	return total, err
}

// remedy returns a hint how to resolve an error, if there is one.
func remedy(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return ": run as root, or grant CAP_NET_ADMIN"
	}
	return ""
}
