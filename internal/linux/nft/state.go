package nft

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// State is the content of a table.
type State struct {
	Chains map[string]ChainState
	Sets   map[string]SetState

	// Dormant means that its chains are disabled. Adding the table again enables them.
	Dormant bool
}

// ChainState is the content of a chain.
type ChainState struct {
	hook  string
	drops bool // its policy is to drop
	rules []string
}

// SetState is the content of a set. It leaves out the elements of dynamic sets, which rules add.
type SetState struct {
	definition string
	Elements   Elements
}

// Is reports whether the chain has exactly this hook and these rules.
func (s ChainState) Is(c Chain) bool {
	if s.drops || s.hook != c.Hook.text() || len(s.rules) != len(c.Rules) {
		return false
	}
	for i, r := range c.Rules {
		if canonical(r.exprs()) != s.rules[i] {
			return false
		}
	}
	return true
}

// SameHook reports whether the chain has this hook, whatever its rules: a hook cannot be changed in place.
func (s ChainState) SameHook(c Chain) bool { return s.hook == c.Hook.text() }

// Is reports whether the set has this definition, whatever its elements. A set of ranges with
// an element for all other keys has not.
func (s SetState) Is(f Family, want Set) bool { return s.definition == want.identity(f) }

// identity returns the definition of a set as far as the library reads one from the
// kernel: of a verdict map it reports no key.
func identity(s *nftables.Set) string {
	if s.IsMap && (s.KeyType.Name == nftables.TypeVerdict.Name || s.DataType.Name == nftables.TypeVerdict.Name) {
		return "verdict map"
	}
	return definition(s)
}

func (s Set) identity(f Family) string { return identity(s.set(Table{Family: f})) }

// canonical returns the text of a rule's expressions, by which a rule that was sent is compared with one that was read.
func canonical(exprs []expr.Any) string {
	var b strings.Builder
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Lookup:
			same := *e
			same.SetID = 0
			fmt.Fprintf(&b, "%+v;", same)
		case *expr.Dynset:
			same := *e
			same.SetID, same.Exprs = 0, nil
			fmt.Fprintf(&b, "%+v{%s};", same, canonical(e.Exprs))
		default:
			fmt.Fprintf(&b, "%T%+v;", e, e)
		}
	}
	return b.String()
}

// Count returns the number of elements in all sets.
func (s *State) Count() int {
	n := 0
	for _, set := range s.Sets {
		n += len(set.Elements)
	}
	return n
}

// read lists a table: its sets with their elements, its chains with their rules.
func (c *Conn) read(t Table, expected []ExpectedKeys) (*State, error) {
	tables, err := c.lib.ListTablesOfFamily(nftables.TableFamily(t.Family))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(tables, func(x *nftables.Table) bool { return x.Name == t.Name })
	if i < 0 {
		return nil, nil
	}
	s := &State{Chains: map[string]ChainState{}, Sets: map[string]SetState{}, Dormant: tables[i].Flags != 0}
	if err := c.readSets(t, s, expected); err != nil {
		return nil, err
	}
	return s, c.readChains(t, s)
}

// readSets reads each set after those from which its keys follow.
func (c *Conn) readSets(t Table, s *State, expected []ExpectedKeys) error {
	sets, err := c.lib.GetSets(t.table())
	if err != nil {
		return err
	}
	x := c.exchange(t)
	slices.SortStableFunc(sets, func(a, b *nftables.Set) int { return order(expected, a.Name) - order(expected, b.Name) })
	for _, ns := range sets {
		state := SetState{definition: identity(ns), Elements: Elements{}}
		if !ns.Dynamic {
			if state.Elements, err = x.readElements(ns, s, expected); err != nil {
				return err
			}
		}
		if _, there := state.Elements[""]; there && ns.Interval {
			delete(state.Elements, "")
			state.definition += " with an element for all other keys;"
		}
		s.Sets[ns.Name] = state
	}
	return nil
}

func (x *exchange) readElements(ns *nftables.Set, read *State, expected []ExpectedKeys) (Elements, error) {
	if i := order(expected, ns.Name); i >= 0 {
		if elements, ok, err := x.readExpected(ns.Name, expected[i].Keys(read)); ok || err != nil {
			return elements, err
		}
	}
	return x.listElements(ns)
}

func (c *Conn) readChains(t Table, s *State) error {
	chains, err := c.lib.ListChainsOfTableFamily(nftables.TableFamily(t.Family))
	if err != nil {
		return err
	}
	for _, nc := range chains {
		if nc.Table.Name != t.Name {
			continue
		}
		rules, err := c.exchange(t).rules(nc.Name)
		if err != nil {
			return err
		}
		s.Chains[nc.Name] = ChainState{
			hook: hookOf(nc).text(), drops: nc.Policy != nil && *nc.Policy == nftables.ChainPolicyDrop, rules: rules,
		}
	}
	return nil
}

func hookOf(nc *nftables.Chain) *Hook {
	if nc.Hooknum == nil {
		return nil
	}
	return &Hook{Type: string(nc.Type), Point: Point(*nc.Hooknum), Priority: int(*nc.Priority)}
}
