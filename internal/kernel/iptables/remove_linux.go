package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// Removal is what to remove from a table: chains with all their rules, and the
// rules of other chains that lead to these.
type Removal struct {
	Table  TableID
	Chains []string
	Rules  []ChainRule // of chains that stay, each by where it leads
}

// ChainRule is a rule of a chain that leads to another.
type ChainRule struct{ Chain, Target string }

// Size returns how many rules and chains are named.
func (r Removal) Size() int { return len(r.Rules) + len(r.Chains) }

// ErrInUse is the error if a rule that is not removed leads to a chain that is. Nothing
// was removed from that table.
var ErrInUse = errors.New("the chain is in use")

// ErrBeyondReach is the error if legacy tables were not changed because this process
// lacks the programs of iptables-legacy or the capabilities to use them.
var ErrBeyondReach = errors.New("legacy tables cannot be changed from here")

// Remove removes rules and chains. It is no error if some do not exist. The tables of the
// nft variant change all together or not at all, by netlink; each legacy table changes as
// a whole or not at all, by iptables-legacy-restore. After a failure it goes on with the
// other tables. Other rules keep their order and their counters, but the programs set the
// counters of policies to zero.
//
// Existing connections are not affected, as conntrack translates them, as long as other
// rules of that family use conntrack: the kernel stops tracking with its last user.
func (k *Kernel) Remove(ctx context.Context, removals ...Removal) error {
	var inNFT []index
	var beyond error
	var errs []error
	for _, r := range removals {
		if r.Table.Variant == NFT {
			inNFT = append(inNFT, r.index())
			continue
		}
		if beyond != nil { // the next one is, too
			continue
		}
		err := k.removeLegacy(ctx, r.index())
		switch {
		case errors.Is(err, ErrBeyondReach):
			beyond = err
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", r.Table, err))
		}
	}
	if len(inNFT) > 0 {
		errs = append(errs, k.nft(func(conn *nft.Conn) error { return pruneNFT(ctx, conn, inNFT) }))
	}
	err := errors.Join(errs...)
	if err == nil && beyond != nil {
		return beyond
	}
	if err = errors.Join(err, beyond); err != nil {
		return fmt.Errorf("remove iptables rules: %w%s", err, remedy(err))
	}
	return nil
}

// index is a Removal with constant-time lookups.
type index struct {
	table  TableID
	chains map[string]bool
	rules  map[ChainRule]bool
}

func (r Removal) index() index {
	x := index{table: r.Table, chains: map[string]bool{}, rules: map[ChainRule]bool{}}
	for _, chain := range r.Chains {
		x.chains[chain] = true
	}
	for _, rule := range r.Rules {
		x.rules[rule] = true
	}
	return x
}

// removes reports whether a rule of a remaining chain is removed. It is an error if a
// remaining rule leads to a removed chain.
func (x index) removes(r ChainRule) (bool, error) {
	if x.chains[r.Target] && !x.rules[r] {
		return false, fmt.Errorf("remove chain %s: a rule of chain %s leads to it: %w", r.Target, r.Chain, ErrInUse)
	}
	return x.chains[r.Target], nil
}

func errBuiltin(chain string) error {
	return fmt.Errorf("remove chain %s: it is built in", chain)
}

// pruneNFT removes from tables of the nft variant.
func pruneNFT(ctx context.Context, conn *nft.Conn, all []index) error {
	var tables []nft.Table
	byTable := map[nft.Table]index{}
	for _, x := range all {
		tables = append(tables, x.table.inNFT())
		byTable[x.table.inNFT()] = x
	}
	err := conn.Prune(ctx, func() ([]nft.Cut, error) {
		outlines, err := conn.Outline(ctx, tables, func(t nft.Table, chain string) bool { return !byTable[t].chains[chain] })
		if err != nil {
			return nil, err
		}
		var cuts []nft.Cut
		for _, o := range outlines {
			cut, err := byTable[o.Table].cut(o)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", fromNFT(o.Table), err)
			}
			cuts = append(cuts, cut)
		}
		return cuts, nil
	})
	if errors.Is(err, unix.EBUSY) { // an element of a map leads there
		err = fmt.Errorf("%w: %w", ErrInUse, err)
	}
	return err
}

// cut returns the part of a removal that exists in a table.
func (x index) cut(o nft.Outline) (nft.Cut, error) {
	cut := nft.Cut{Table: o.Table}
	for _, c := range o.Chains {
		if x.chains[c.Name] {
			if c.Base {
				return cut, errBuiltin(c.Name)
			}
			cut.Chains = append(cut.Chains, c.Name)
			continue
		}
		for _, r := range c.Rules {
			if !r.Jump {
				continue
			}
			goes, err := x.removes(ChainRule{c.Name, r.Target})
			if err != nil {
				return cut, err
			}
			if goes {
				cut.Rules = append(cut.Rules, nft.RuleRef{Chain: c.Name, Handle: r.Handle})
			}
		}
	}
	return cut, nil
}

// removeLegacy removes from one legacy table. If another program changes the table
// between reading and writing, the program may refuse the input, and nothing is removed.
func (k *Kernel) removeLegacy(ctx context.Context, x index) error {
	there, err := k.Exists(ctx, x.table)
	if err != nil || !there {
		return err
	}
	saved, err := k.saveLegacy(ctx, x.table)
	if err != nil {
		return err
	}
	input, err := x.input(saved)
	if err != nil || input == "" {
		return err
	}
	t, err := k.legacyTools(ctx, x.table.Family)
	if err != nil {
		return err
	}
	return beyondReach(t.Restore(ctx, x.table.Family, []byte(input)))
}

// saveLegacy returns what PROGRAM-save prints of a legacy table, which must exist. The error is ErrBeyondReach if
// this process lacks the programs or the capabilities to use them.
func (k *Kernel) saveLegacy(ctx context.Context, table TableID) (string, error) {
	t, err := k.legacyTools(ctx, table.Family)
	if err != nil {
		return "", err
	}
	var saved []byte
	err = t.run(ctx, call{
		path: t.programs[table.Family].save, args: []string{"-t", table.Name},
		output: func(r io.Reader) (err error) {
			saved, err = io.ReadAll(r)
			return err
		},
	})
	return string(saved), beyondReach(err)
}

// legacyTools returns the programs of the legacy variant.
func (k *Kernel) legacyTools(ctx context.Context, f Family) (*Tools, error) {
	installed, err := k.opts.installed(ctx)
	if err != nil && !errors.Is(err, ErrMissing) {
		return nil, err
	}
	if installed[Legacy][f].restore == "" {
		return nil, fmt.Errorf("%w: %s is %w", ErrBeyondReach, programName(f, "-legacy-restore"), ErrMissing)
	}
	return &Tools{opts: k.opts, kernel: k, variant: Legacy, programs: installed[Legacy]}, nil
}

// beyondReach recognizes the messages of programs that lack a capability or cannot open
// the lock file.
func beyondReach(err error) error {
	if err != nil && (errors.Is(err, fs.ErrPermission) ||
		strings.Contains(err.Error(), "you must be root") || strings.Contains(err.Error(), "can't open lock file")) {
		return fmt.Errorf("%w: %w", ErrBeyondReach, err)
	}
	return err
}

// input returns the input of PROGRAM-restore that removes the part of a removal that
// exists in a table, given the output of PROGRAM-save; empty: nothing exists. Rules are
// identified by their text, not by their number, which another program may change.
func (x index) input(saved string) (string, error) {
	var chains, rules, gone strings.Builder
	err := commands(saved, func(c command) error {
		switch {
		case c.table != x.table.Name:
		case c.verb == ":" && x.chains[c.chain]:
			if c.rest != "-" {
				return errBuiltin(c.chain)
			}
			fmt.Fprintf(&chains, ":%s - [0:0]\n", c.chain) // takes its rules out
			fmt.Fprintf(&gone, "-X %s\n", c.chain)
		case c.verb == "-A" && !x.chains[c.chain]:
			goes, err := x.removes(ChainRule{c.chain, Target(c.rest)})
			if goes {
				fmt.Fprintf(&rules, "-D %s %s\n", c.chain, c.rest)
			}
			return err
		}
		return nil
	})
	if err != nil || chains.Len()+rules.Len() == 0 {
		return "", err
	}
	return fmt.Sprintf("*%s\n%s%s%sCOMMIT\n", x.table.Name, chains.String(), rules.String(), gone.String()), nil
}
