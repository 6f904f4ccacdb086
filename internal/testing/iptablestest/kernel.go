// Package iptablestest has a fake of iptables.Kernel, for tests.
package iptablestest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// Kernel is an in-memory fake of iptables.Kernel. It refuses to remove a chain to which a rule still jumps.
type Kernel struct {
	// Fail, if set, is called before each read ("read") and removal ("remove legacy", "remove nft"); if it returns an
	// error, the operation returns that error. Set it before use.
	Fail func(verb string) error

	mu     sync.Mutex
	tables []iptables.Outline
}

// NewKernel returns a kernel with these tables.
func NewKernel(tables ...iptables.Outline) *Kernel { return &Kernel{tables: tables} }

// Outlines implements the contract of iptables.Kernel.Outlines.
func (k *Kernel) Outlines(ctx context.Context, rules func(chain string) bool) ([]iptables.Outline, error) {
	if err := k.fail(ctx, "read"); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	all := slices.Clone(k.tables)
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

// Remove implements the contract of iptables.Kernel.Remove.
func (k *Kernel) Remove(ctx context.Context, removals ...iptables.Removal) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	var inNFT []iptables.Removal
	for _, r := range removals {
		if r.Table.Variant == iptables.NFT {
			inNFT = append(inNFT, r)
			continue
		}
		errs = append(errs, k.remove(ctx, "remove legacy", r))
	}
	return errors.Join(append(errs, k.remove(ctx, "remove nft", inNFT...))...)
}

// remove removes everything or nothing.
func (k *Kernel) remove(ctx context.Context, verb string, removals ...iptables.Removal) error {
	if len(removals) == 0 {
		return nil
	}
	if err := k.fail(ctx, verb); err != nil {
		return err
	}
	after := slices.Clone(k.tables)
	for _, r := range removals {
		i := slices.IndexFunc(after, func(t iptables.Outline) bool { return t.TableID == r.Table })
		if i < 0 {
			continue
		}
		rest, err := without(after[i], r)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Table, err)
		}
		after[i] = rest
	}
	k.tables = after
	return nil
}

// without returns a table without the chains and rules of a removal.
func without(o iptables.Outline, r iptables.Removal) (iptables.Outline, error) {
	rest := iptables.Outline{TableID: o.TableID}
	for _, c := range o.Chains {
		if slices.Contains(r.Chains, c.Name) {
			continue
		}
		kept := iptables.ChainOutline{Name: c.Name, Builtin: c.Builtin}
		for _, rule := range c.Rules {
			if !slices.Contains(r.Chains, rule.Target) {
				kept.Rules = append(kept.Rules, rule)
			} else if !slices.Contains(r.Rules, iptables.ChainRule{Chain: c.Name, RuleOutline: rule}) {
				return o, fmt.Errorf("remove chain %s: a rule of chain %s leads to it: %w", rule.Target, c.Name, iptables.ErrInUse)
			}
		}
		rest.Chains = append(rest.Chains, kept)
	}
	return rest, nil
}

func (k *Kernel) fail(ctx context.Context, verb string) error {
	if err := ctx.Err(); err != nil || k.Fail == nil {
		return err
	}
	return k.Fail(verb)
}

// String prints the tables in a short form of the output of PROGRAM-save.
func (k *Kernel) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var b strings.Builder
	for _, t := range k.tables {
		fmt.Fprintf(&b, "# %s\n", t.TableID)
		for _, c := range t.Chains {
			fmt.Fprintf(&b, ":%s\n", c.Name)
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				b.WriteString(strings.TrimSuffix(fmt.Sprintf("-A %s -j %s", c.Name, r.Target), " -j ") + "\n")
			}
		}
	}
	return b.String()
}
