package nft

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// read lists a table: its sets with their elements, its chains with their rules.
func (c *Conn) read(t Table) (*State, error) {
	tables, err := c.lib.ListTablesOfFamily(nftables.TableFamily(t.Family))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(tables, func(x *nftables.Table) bool { return x.Name == t.Name })
	if i < 0 {
		return nil, nil
	}
	s := &State{Chains: map[string]ChainState{}, Sets: map[string]SetState{}, Dormant: tables[i].Flags != 0}
	if err := c.readSets(t, s); err != nil {
		return nil, err
	}
	return s, c.readChains(t, s)
}

func (c *Conn) readSets(t Table, s *State) error {
	sets, err := c.lib.GetSets(t.table())
	if err != nil {
		return err
	}
	for _, ns := range sets {
		state := SetState{definition: identity(ns), Elements: map[string]Element{}}
		if !ns.Dynamic {
			if state.Elements, err = c.readElements(ns); err != nil {
				return err
			}
		}
		s.Sets[ns.Name] = state
	}
	return nil
}

// readElements reads a set again until no element is listed twice. For some
// milliseconds after a set has grown much, the kernel moves its elements, and a listing
// misses some and has as many others twice: each part of it continues at a position, not
// at an element (nft_set_hash.c, nft_rhash_walk).
func (c *Conn) readElements(ns *nftables.Set) (map[string]Element, error) {
	for try := range readAttempts {
		listed, err := c.lib.GetSetElements(ns)
		if err != nil {
			return nil, err
		}
		if ns.Interval && !ns.Concatenation {
			listed = pair(listed)
		}
		elements := collect(ns, listed)
		if len(elements) == len(listed) {
			return elements, nil
		}
		time.Sleep(time.Duration(try+1) * readPause)
	}
	return nil, fmt.Errorf("set %s: its elements move during each of %d listings", ns.Name, readAttempts)
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

// collect converts elements.
func collect(ns *nftables.Set, elements []nftables.SetElement) map[string]Element {
	m := make(map[string]Element, len(elements))
	for _, ne := range elements {
		e := Element{Key: string(ne.Key), End: string(ne.KeyEnd), Comment: ne.Comment}
		switch {
		case readsVerdicts(ns):
			e.Goto = targetOf(ne.Val)
		case ns.IsMap:
			e.Data = string(ne.Val)
		}
		m[e.Key+e.End] = e
	}
	return m
}

// readsVerdicts reports whether a set that was read is a verdict map: the
// library reports verdict as the type of its key then.
func readsVerdicts(ns *nftables.Set) bool {
	return ns.IsMap && ns.KeyType.Name == nftables.TypeVerdict.Name
}

// targetOf returns the chain a verdict leads to: the library hands over the
// nested attributes as they are.
func targetOf(verdict []byte) string {
	ad, err := netlink.NewAttributeDecoder(verdict)
	if err != nil {
		return ""
	}
	chain := ""
	for ad.Next() {
		if ad.Type() == unix.NFTA_VERDICT_CHAIN {
			chain = ad.String()
		}
	}
	return chain
}

// pair joins the two elements as which a range of a plain interval set comes,
// its first key and the key after its last; a range without end reaches to the
// last key there is.
func pair(elements []nftables.SetElement) []nftables.SetElement {
	slices.SortFunc(elements, func(a, b nftables.SetElement) int {
		return cmp.Or(cmp.Compare(string(a.Key), string(b.Key)), cmp.Compare(order(a), order(b)))
	})
	var ranges []nftables.SetElement
	for _, e := range elements {
		switch {
		case !e.IntervalEnd:
			ranges = append(ranges, e)
		case len(ranges) > 0:
			ranges[len(ranges)-1].KeyEnd = e.Key
		}
	}
	return ranges
}

// order puts the end of a range before the beginning of the next.
func order(e nftables.SetElement) int {
	if e.IntervalEnd {
		return 0
	}
	return 1
}

func hookOf(nc *nftables.Chain) *Hook {
	if nc.Hooknum == nil {
		return nil
	}
	return &Hook{Type: string(nc.Type), Point: Point(*nc.Hooknum), Priority: int(*nc.Priority)}
}

// chain converts to the library's type.
func (c Chain) chain(t Table) *nftables.Chain {
	nc := &nftables.Chain{Table: t.table(), Name: c.Name}
	if c.Hook != nil {
		nc.Type = nftables.ChainType(c.Hook.Type)
		nc.Hooknum = new(nftables.ChainHook(c.Hook.Point))
		nc.Priority = new(nftables.ChainPriority(c.Hook.Priority))
		nc.Policy = new(nftables.ChainPolicyAccept)
	}
	return nc
}
