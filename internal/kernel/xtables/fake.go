package xtables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Fake is a kernel in memory. It refuses what the real one refuses: to remove a
// built-in chain, or one that something else leads to.
type Fake struct {
	// Fail, if set, is asked before each reading ("tables") and removal
	// ("remove"); its error is returned instead. Set it before use.
	Fail func(verb string) error

	mu     sync.Mutex
	tables []Table
}

// NewFake returns a kernel with these tables. A rule without an ID gets one.
func NewFake(tables ...Table) *Fake {
	f := &Fake{}
	id := uint64(1)
	for _, t := range tables {
		t = cut{}.apply(t) // a copy
		for _, chain := range t.Chains {
			for i := range chain.Rules {
				if chain.Rules[i].ID == 0 {
					chain.Rules[i].ID = id
				}
				id++
			}
		}
		f.tables = append(f.tables, t)
	}
	return f
}

// Tables is as Kernel.Tables.
func (f *Fake) Tables(ctx context.Context) ([]Table, error) {
	if err := f.ask(ctx, "tables"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.tables), nil // what they hold never changes
}

// Remove is as Kernel.Remove.
func (f *Fake) Remove(ctx context.Context, removals ...Removal) error {
	if err := f.ask(ctx, "remove"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var legacy, nft []Removal
	for _, r := range removals {
		if r.Table.Variant == NFT {
			nft = append(nft, r)
			continue
		}
		legacy = append(legacy, r)
	}
	err := f.remove(nft)
	for _, r := range legacy {
		err = errors.Join(err, f.remove([]Removal{r}))
	}
	return err
}

// remove does all or nothing.
func (f *Fake) remove(removals []Removal) error {
	after := slices.Clone(f.tables)
	for _, r := range removals {
		i := slices.IndexFunc(after, func(t Table) bool { return t.TableID == r.Table })
		if i < 0 {
			continue
		}
		c, err := r.cut(after[i])
		if err != nil {
			return fmt.Errorf("%s: %w", r.Table, err)
		}
		after[i] = c.apply(after[i])
	}
	f.tables = after
	return nil
}

func (f *Fake) ask(ctx context.Context, verb string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.Fail == nil {
		return nil
	}
	return f.Fail(verb)
}

// String prints the tables about as iptables-save does.
func (f *Fake) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, t := range f.tables {
		fmt.Fprintf(&b, "# %s\n", t.TableID)
		for _, chain := range t.Chains {
			fmt.Fprintf(&b, ":%s\n", chain.Name)
		}
		for _, chain := range t.Chains {
			for _, r := range chain.Rules {
				fmt.Fprintf(&b, "-A %s%s\n", chain.Name, r)
			}
		}
	}
	return b.String()
}

// String prints what is known of the rule, about as iptables-save does.
func (r Rule) String() string {
	s := ""
	if r.Comment != "" {
		s += fmt.Sprintf(" -m comment --comment %q", r.Comment)
	}
	if r.Target != "" {
		s += " -j " + r.Target
	}
	return s
}
