package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Outline is a table of any program: its chains, and the targets of their rules. It
// leaves out sets and the conditions of rules.
type Outline struct {
	Table
	Handle uint64         // identifies the table: a recreated one has another
	Chains []ChainOutline // in the order in which they were added
}

// ChainOutline is a chain with its rules in their order.
type ChainOutline struct {
	Name    string
	Builtin bool // a hook of the kernel leads here; false: a regular chain
	Hook    Point
	Rules   []RuleOutline
}

// Entrance reports whether the chain handles packets that arrive from the network or that
// programs of this node send, before they are routed.
func (c ChainOutline) Entrance() bool {
	return c.Builtin && (c.Hook == Prerouting || c.Hook == Output)
}

// RuleOutline is a rule without its conditions.
type RuleOutline struct {
	Handle uint64 // identifies the rule in its table
	Text   string // identifies the rule in its chain, in a table of iptables-legacy, where it has no handle
	Target string // the chain it jumps to, or its action ("ACCEPT", "DNAT"); empty: none
	Jump   bool   // Target is a chain, by jump or goto
	Every  bool   // the rule has no condition; unknown in a table of iptables-legacy
}

// AllRules and NoRules select the chains whose rules Outline lists.
func AllRules(Table, string) bool { return true }

// NoRules selects no chain.
func NoRules(Table, string) bool { return false }

// Outline returns those of the tables that exist, with the rules of the selected chains
// only. A kernel without nf_tables has no tables.
func (c *Conn) Outline(ctx context.Context, tables []Table, rules func(t Table, chain string) bool) ([]Outline, error) {
	var all []Outline
	err := c.retry(ctx, func() (err error) {
		all, err = c.outline(ctx, tables, rules)
		return err
	})
	return all, err
}

func (c *Conn) outline(ctx context.Context, tables []Table, rules func(Table, string) bool) ([]Outline, error) {
	var all []Outline
	for _, f := range []Family{IP4, IP6} {
		found, err := c.chainsOf(f, tables)
		if err != nil {
			return nil, fmt.Errorf("list tables of nf_tables: %w", err)
		}
		all = append(all, found...)
	}
	for _, t := range all {
		for i := range t.Chains {
			if !rules(t.Table, t.Chains[i].Name) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := c.outlineRules(t.Table, &t.Chains[i]); err != nil {
				return nil, fmt.Errorf("list rules of %s %s: %w", t.Table, t.Chains[i].Name, err)
			}
		}
	}
	return all, nil
}

// chainsOf lists tables of one family with their chains, without rules.
func (c *Conn) chainsOf(f Family, tables []Table) ([]Outline, error) {
	var found []Outline
	err := c.dump(unix.NFT_MSG_GETTABLE, Table{Family: f}, "", func(o object) {
		if slices.Contains(tables, o.table) {
			found = append(found, Outline{Table: o.table, Handle: o.handle})
		}
	})
	if absent(err) {
		return nil, nil
	}
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found, c.dump(unix.NFT_MSG_GETCHAIN, Table{Family: f}, "", func(o object) {
		if i := slices.IndexFunc(found, func(t Outline) bool { return t.Table == o.table }); i >= 0 {
			found[i].Chains = append(found[i].Chains, ChainOutline{Name: o.chain, Builtin: o.base, Hook: o.hook})
		}
	})
}

// outlineRules lists the rules of one chain. The kernel starts a listing of a whole table from its beginning for each
// piece of the answer, so chain by chain is faster.
func (c *Conn) outlineRules(t Table, chain *ChainOutline) error {
	return c.dump(unix.NFT_MSG_GETRULE, t, chain.Name, func(o object) {
		if o.table == t && o.chain == chain.Name { // kernels before 4.20 list all
			chain.Rules = append(chain.Rules, o.rule)
		}
	})
}

// Has reports whether a table exists and, if chain is not empty, has that chain.
// The cost does not depend on what the table holds.
func (c *Conn) Has(ctx context.Context, t Table, chain string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	x := c.exchange(t)
	x.begin(unix.NFT_MSG_GETTABLE, unix.NLM_F_ACK)
	if chain != "" {
		x.begin(unix.NFT_MSG_GETCHAIN, unix.NLM_F_ACK)
		x.text(unix.NFTA_CHAIN_NAME, chain)
	}
	err := c.sock.SetDeadline(time.Now().Add(answerTimeout))
	if err == nil {
		err = x.do(nothing)
	}
	switch {
	case errors.Is(err, unix.ENOENT), absent(err):
		return false, nil
	case err != nil:
		return false, errors.Join(fmt.Errorf("look for %s %s: %w", t, chain, err), c.redial())
	}
	return true, nil
}

// dump calls fn for each object of a listing: of all tables, or of the rules of a chain. The error is EINTR
// if another program changed what is listed meanwhile.
func (c *Conn) dump(kind uint16, t Table, chain string, fn func(object)) error {
	if err := c.sock.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	x := c.exchange(t)
	x.begin(kind, unix.NLM_F_DUMP)
	if chain != "" {
		x.text(unix.NFTA_RULE_CHAIN, chain)
	}
	return x.do(func(m netlink.Message) error {
		o, err := decodeObject(m)
		if err == nil {
			fn(o)
		}
		return err
	})
}

// absent reports whether an error means that the kernel has no nf_tables.
func absent(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}
