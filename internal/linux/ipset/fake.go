package ipset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Fake is ipset in memory. It refuses what the kernel refuses. One goroutine uses it.
type Fake struct {
	sets map[string]*Set
	Max  int // members of a set; 0: no limit
}

// NewFake returns ipset without sets.
func NewFake() *Fake { return &Fake{sets: map[string]*Set{}} }

// List returns the sets of these names that exist, with their members.
func (f *Fake) List(_ context.Context, names []string) (map[string]*Set, error) {
	all := map[string]*Set{}
	for _, name := range names {
		if s := f.sets[name]; s != nil {
			all[name] = &Set{s.Kind, maps.Clone(s.Members)}
		}
	}
	return all, nil
}

// Sizes returns the number of members of each set.
func (f *Fake) Sizes(context.Context) (map[string]int, error) {
	sizes := map[string]int{}
	for name, s := range f.sets {
		sizes[name] = len(s.Members)
	}
	return sizes, nil
}

// Apply makes changes in their order. It stops at the first error.
func (f *Fake) Apply(_ context.Context, changes []Change) error {
	for _, c := range changes {
		if err := f.apply(c); err != nil {
			return fmt.Errorf("ipset %s: %w", c, reason(err))
		}
	}
	return nil
}

func (f *Fake) apply(c Change) error {
	s := f.sets[c.Set]
	switch {
	case c.Op == Create && s == nil:
		f.sets[c.Set] = &Set{c.Kind, map[Member]uint32{}}
	case c.Op == Create && s.Kind != c.Kind:
		return unix.EEXIST
	case c.Op == Create:
	case c.Op == Destroy:
		delete(f.sets, c.Set)
	case s == nil:
		return unix.ENOENT
	case c.Op == Delete:
		delete(s.Members, c.Member)
	default:
		if _, there := s.Members[c.Member]; !there && f.Max > 0 && len(s.Members) == f.Max {
			return ErrFull
		}
		s.Members[c.Member] = c.Mark
	}
	return nil
}

// String prints all sets with their members, sorted.
func (f *Fake) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f.sets)) {
		s := f.sets[name]
		lines := []string{}
		for m, mark := range s.Members {
			lines = append(lines, Change{Op: Add, Set: name, Kind: s.Kind, Member: m, Mark: mark}.String()+"\n")
		}
		slices.Sort(lines)
		fmt.Fprintln(&b, Change{Op: Create, Set: name, Kind: s.Kind})
		b.WriteString(strings.Join(lines, ""))
	}
	return b.String()
}
