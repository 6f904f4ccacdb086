package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// FakeKernel is what Kernel reads and changes, in memory. It refuses what the real
// one refuses: to remove a built-in chain, or one that something else leads to.
type FakeKernel struct {
	// Fail, if set, is asked before each reading ("read") and removal ("remove
	// legacy", "remove nft"); its error is returned instead. Set it before use.
	Fail func(verb string) error

	mu     sync.Mutex
	tables []Outline
}

// NewFakeKernel returns a kernel with these tables.
func NewFakeKernel(tables ...Outline) *FakeKernel { return &FakeKernel{tables: tables} }

// Outlines is as Kernel.Outlines.
func (f *FakeKernel) Outlines(ctx context.Context, rules func(chain string) bool) ([]Outline, error) {
	if err := f.ask(ctx, "read"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.Clone(f.tables)
	for i := range all {
		all[i].Chains = slices.Clone(all[i].Chains)
		for j, c := range all[i].Chains {
			if !rules(c.Name) {
				all[i].Chains[j].Rules = nil
			}
		}
	}
	return all, nil
}

// Remove is as Kernel.Remove.
func (f *FakeKernel) Remove(ctx context.Context, removals ...Removal) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	var inNFT []Removal
	for _, r := range removals {
		if r.Table.Variant == NFT {
			inNFT = append(inNFT, r)
			continue
		}
		errs = append(errs, f.remove(ctx, "remove legacy", r))
	}
	return errors.Join(append(errs, f.remove(ctx, "remove nft", inNFT...))...)
}

// remove removes all or nothing.
func (f *FakeKernel) remove(ctx context.Context, verb string, removals ...Removal) error {
	if len(removals) == 0 {
		return nil
	}
	if err := f.ask(ctx, verb); err != nil {
		return err
	}
	after := slices.Clone(f.tables)
	for _, r := range removals {
		i := slices.IndexFunc(after, func(t Outline) bool { return t.TableID == r.Table })
		if i < 0 {
			continue
		}
		rest, err := r.index().without(after[i])
		if err != nil {
			return fmt.Errorf("%s: %w", r.Table, err)
		}
		after[i] = rest
	}
	f.tables = after
	return nil
}

// without returns a table without what is removed.
func (x index) without(o Outline) (Outline, error) {
	rest := Outline{TableID: o.TableID}
	for _, c := range o.Chains {
		if x.chains[c.Name] && c.Builtin {
			return o, errBuiltin(c.Name)
		}
		if x.chains[c.Name] {
			continue
		}
		kept := ChainOutline{Name: c.Name, Builtin: c.Builtin}
		for _, r := range c.Rules {
			goes, err := x.removes(ChainRule{c.Name, r.Target})
			if err != nil {
				return o, err
			}
			if !goes {
				kept.Rules = append(kept.Rules, r)
			}
		}
		rest.Chains = append(rest.Chains, kept)
	}
	return rest, nil
}

func (f *FakeKernel) ask(ctx context.Context, verb string) error {
	if err := ctx.Err(); err != nil || f.Fail == nil {
		return err
	}
	return f.Fail(verb)
}

// String prints the tables about as PROGRAM-save does.
func (f *FakeKernel) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, t := range f.tables {
		fmt.Fprintf(&b, "# %s\n", t.TableID)
		for _, c := range t.Chains {
			fmt.Fprintf(&b, ":%s\n", c.Name)
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				fmt.Fprintf(&b, "-A %s%s\n", c.Name, r)
			}
		}
	}
	return b.String()
}

// String prints what is known of the rule, about as PROGRAM-save does.
func (r RuleOutline) String() string {
	if r.Target == "" {
		return ""
	}
	return " -j " + r.Target
}
