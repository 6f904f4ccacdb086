package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// Outline is a table with all its chains, without the conditions of rules. In the legacy variant chains are sorted; in
// the nft variant they are in the order in which they were created.
type Outline struct {
	TableID
	Handle uint64 // of the table, in the nft variant
	Chains []ChainOutline
}

// ChainOutline is a chain, the same in both variants.
type ChainOutline = nft.ChainOutline

// RuleOutline is a rule without its conditions, the same in both variants.
type RuleOutline = nft.RuleOutline

// ChainRule is a rule of a chain, the same in both variants.
type ChainRule = nft.ChainRule

// Kernel reads the tables of both variants in one network namespace, and removes chains
// from them: those of nft by netlink, those of legacy by the programs. It holds no resources.
type Kernel struct{ opts Options }

// NewKernel returns the tables of a namespace.
func NewKernel(o Options) *Kernel {
	o.fill()
	return &Kernel{opts: o}
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

// Outlines returns all tables of both variants and families that exist. It creates none. In the nft variant these are
// the tables with the names that iptables uses, whatever program created them. It may leave out the rules of chains
// that are not selected, which saves most of the time in that variant. Legacy tables have no rules, and only the chains
// that were added, if this process lacks the programs of iptables-legacy or the capabilities to use them.
func (k *Kernel) Outlines(ctx context.Context, rules func(chain string) bool) ([]Outline, error) {
	legacy, err := k.outlinesLegacy(ctx)
	if err != nil {
		return nil, fmt.Errorf("read iptables rules: %w%s", err, remedy(err))
	}
	inNFT, err := k.outlinesNFT(ctx, rules)
	if err != nil {
		return nil, fmt.Errorf("read iptables rules: %w%s", err, remedy(err))
	}
	return append(legacy, inNFT...), nil
}

func (k *Kernel) outlinesNFT(ctx context.Context, rules func(chain string) bool) (all []Outline, err error) {
	err = k.nft(func(conn *nft.Conn) error {
		tables, err := conn.Outline(ctx, nftTables(), func(_ nft.Table, chain string) bool { return rules(chain) })
		for _, t := range tables {
			all = append(all, Outline{fromNFT(t.Table), t.Handle, t.Chains})
		}
		return err
	})
	return all, err
}

func (k *Kernel) outlinesLegacy(ctx context.Context) (all []Outline, err error) {
	tables, err := k.legacyTables(ctx)
	for _, t := range tables {
		o := Outline{TableID: t.TableID}
		chains, readErr := k.readLegacy(ctx, t.TableID)
		switch {
		case readErr == nil:
			o.Chains = chains.outlines()
		case errors.Is(readErr, ErrBeyondReach):
			for _, name := range t.chains {
				o.Chains = append(o.Chains, ChainOutline{Name: name})
			}
		default:
			return nil, readErr
		}
		all = append(all, o)
	}
	return all, err
}

// outlines returns the chains, sorted by name.
func (c Chains) outlines() []ChainOutline {
	var list []ChainOutline
	for _, name := range slices.Sorted(maps.Keys(c)) {
		o := ChainOutline{Name: name, Builtin: c[name].Builtin()}
		for _, rule := range c[name].Rules {
			target := Target(rule)
			_, jump := c[target]
			o.Rules = append(o.Rules, RuleOutline{Target: target, Jump: jump, Text: rule})
		}
		list = append(list, o)
	}
	return list
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

// Exists reports whether a table exists. Unlike PROGRAM-save of the legacy variant it creates none.
func (k *Kernel) Exists(ctx context.Context, id TableID) (found bool, err error) {
	if id.Variant == NFT {
		return k.hasNFT(ctx, id, "")
	}
	err = k.legacy(ctx, func(table TableID, _ protocol) error {
		found = found || table == id
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("look for %s: %w%s", id, err, remedy(err))
	}
	return found, nil
}

// hasNFT reports whether a table of the nft variant exists and, if chain is not empty, has that chain. The
// cost does not depend on what the table holds.
func (k *Kernel) hasNFT(ctx context.Context, id TableID, chain string) (found bool, err error) {
	err = k.nft(func(conn *nft.Conn) error {
		found, err = conn.Has(ctx, id.inNFT(), chain)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look for %s %s: %w%s", id, chain, err, remedy(err))
	}
	return found, nil
}

// remedy returns a hint how to resolve an error, if there is one.
func remedy(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return ": run as root, or grant CAP_NET_ADMIN"
	}
	return ""
}
