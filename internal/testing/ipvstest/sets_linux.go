package ipvstest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
)

// Sets are ipsets in memory. They refuse what the kernel refuses. One goroutine uses them.
type Sets struct {
	sets map[string]*ipset.Set
	Max  int // members of a set; 0: no limit
}

// NewSets returns none.
func NewSets() *Sets { return &Sets{sets: map[string]*ipset.Set{}} }

// List returns the sets of these names that exist, with their members.
func (f *Sets) List(_ context.Context, names []string) (map[string]*ipset.Set, error) {
	all := map[string]*ipset.Set{}
	for _, name := range names {
		if s := f.sets[name]; s != nil {
			all[name] = &ipset.Set{Definition: s.Definition, Members: maps.Clone(s.Members)}
		}
	}
	return all, nil
}

// Apply makes changes in their order. It stops at the first error.
func (f *Sets) Apply(_ context.Context, changes []ipset.Command) error {
	for _, c := range changes {
		if err := f.apply(c); err != nil {
			return fmt.Errorf("ipset %s: %w", c, err)
		}
	}
	return nil
}

func (f *Sets) apply(c ipset.Command) error {
	s := f.sets[c.Set]
	switch {
	case c.Op == ipset.Create && s == nil:
		f.sets[c.Set] = &ipset.Set{Definition: c.Definition, Members: map[ipset.Member]uint32{}}
	case c.Op == ipset.Create && s.Definition != c.Definition:
		return unix.EEXIST
	case c.Op == ipset.Create:
	case c.Op == ipset.Destroy:
		delete(f.sets, c.Set)
	case s == nil:
		return unix.ENOENT
	case c.Op == ipset.Delete:
		delete(s.Members, c.Member)
	default:
		if _, there := s.Members[c.Member]; !there && f.Max > 0 && len(s.Members) == f.Max {
			return ipset.ErrFull
		}
		s.Members[c.Member] = c.Mark
	}
	return nil
}

// String prints all sets with their members, sorted.
func (f *Sets) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f.sets)) {
		s := f.sets[name]
		lines := []string{}
		for m, mark := range s.Members {
			add := ipset.Command{Op: ipset.Add, Set: name, Definition: s.Definition, Member: m, Mark: mark}
			lines = append(lines, add.String()+"\n")
		}
		slices.Sort(lines)
		fmt.Fprintln(&b, ipset.Command{Op: ipset.Create, Set: name, Definition: s.Definition})
		b.WriteString(strings.Join(lines, ""))
	}
	return b.String()
}
