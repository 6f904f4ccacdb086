package nft

import (
	"slices"

	"github.com/google/nftables"
)

// read lists a table: its sets with their elements, its chains with their rules.
func (c *Conn) read(t Table, guesses []Guess) (*State, error) {
	tables, err := c.lib.ListTablesOfFamily(nftables.TableFamily(t.Family))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(tables, func(x *nftables.Table) bool { return x.Name == t.Name })
	if i < 0 {
		return nil, nil
	}
	s := &State{Chains: map[string]ChainState{}, Sets: map[string]SetState{}, Dormant: tables[i].Flags != 0}
	if err := c.readSets(t, s, guesses); err != nil {
		return nil, err
	}
	return s, c.readChains(t, s)
}

// readSets reads each set after those from which its keys are guessed.
func (c *Conn) readSets(t Table, s *State, guesses []Guess) error {
	sets, err := c.lib.GetSets(t.table())
	if err != nil {
		return err
	}
	x := c.exchange(t)
	slices.SortStableFunc(sets, func(a, b *nftables.Set) int { return order(guesses, a.Name) - order(guesses, b.Name) })
	for _, ns := range sets {
		state := SetState{definition: identity(ns), Elements: Elements{}}
		if !ns.Dynamic {
			if state.Elements, err = x.readElements(ns, s, guesses); err != nil {
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

func (x *exchange) readElements(ns *nftables.Set, read *State, guesses []Guess) (Elements, error) {
	if i := order(guesses, ns.Name); i >= 0 {
		if elements, ok, err := x.readGuessed(ns.Name, guesses[i].Keys(read)); ok || err != nil {
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
		rules, err := c.lib.GetRules(t.table(), nc)
		if err != nil {
			return err
		}
		state := ChainState{hook: hookOf(nc).text(), drops: nc.Policy != nil && *nc.Policy == nftables.ChainPolicyDrop}
		for _, r := range rules {
			state.rules = append(state.rules, canonical(r.Exprs))
		}
		s.Chains[nc.Name] = state
	}
	return nil
}

func hookOf(nc *nftables.Chain) *Hook {
	if nc.Hooknum == nil {
		return nil
	}
	return &Hook{Type: string(nc.Type), Point: Point(*nc.Hooknum), Priority: int(*nc.Priority)}
}
