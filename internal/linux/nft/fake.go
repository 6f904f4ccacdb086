package nft

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
)

// Fake is nf_tables in memory. It refuses what the kernel refuses: a key that
// exists with other data, an element that is missing, a chain or set that is missing or
// still in use. A refused transaction changes nothing.
type Fake struct {
	Tables  map[Table]*State
	Rules   map[Table]map[string][]Rule // by chain, to find what they use
	Commits int
	Fail    func(tx *Tx) error // if set, may fail a transaction before it is carried out

	// Refuse, if set, may refuse an element or a chain, given as nft commands: "add
	// element ip t s { 10.0.0.1 }", "add chain ip t c", "add rule ip t c drop".
	Refuse func(command string) error

	Space int // what Room returns; 0: a megabyte
}

// NewFake returns an empty Fake.
func NewFake() *Fake {
	return &Fake{Tables: map[Table]*State{}, Rules: map[Table]map[string][]Rule{}}
}

// Room is as that of Conn.
func (f *Fake) Room() int {
	if f.Space == 0 {
		return 1 << 20
	}
	return f.Space
}

// Read returns a copy of the contents of a table; nil if it does not exist.
func (f *Fake) Read(_ context.Context, t Table, _ []Guess) (*State, error) {
	s := f.Tables[t]
	if s == nil {
		return nil, nil
	}
	return s.clone(), nil
}

// DeleteTables deletes the tables that exist.
func (f *Fake) DeleteTables(_ context.Context, tables ...Table) error {
	for _, t := range tables {
		delete(f.Tables, t)
		delete(f.Rules, t)
	}
	return nil
}

// Watch waits for the context: no other program edits a Fake.
func (f *Fake) Watch(ctx context.Context, _ []Table, subscribed func(), _ func(Edit)) error {
	subscribed()
	<-ctx.Done()
	return nil
}

// Commit carries a transaction out, as a whole or not at all.
func (f *Fake) Commit(_ context.Context, tx *Tx) error {
	if f.Fail != nil {
		if err := f.Fail(tx); err != nil {
			return err
		}
	}
	next := f.clone()
	if err := next.run(tx); err != nil {
		return refusal(err, tx, func(t Table) bool { return f.Tables[t] != nil })
	}
	f.Tables, f.Rules = next.Tables, next.Rules
	f.Commits++
	return nil
}

func (f *Fake) run(tx *Tx) error {
	if f.Refuse != nil {
		for line := range strings.Lines(tx.String()) {
			line = strings.TrimSuffix(line, "\n")
			if err := f.Refuse(line); err != nil && strings.HasPrefix(line, "add ") {
				return fmt.Errorf("%s: %w", line, err)
			}
		}
	}
	for _, t := range tx.dropped {
		if f.Tables[t] == nil {
			return missing("delete table %s: no such table", t)
		}
		delete(f.Tables, t)
		delete(f.Rules, t)
	}
	for _, t := range tx.tables {
		if f.Tables[t] == nil {
			f.Tables[t] = &State{Chains: map[string]ChainState{}, Sets: map[string]SetState{}}
			f.Rules[t] = map[string][]Rule{}
		}
		f.Tables[t].Dormant = false
	}
	for _, s := range tx.sets {
		if err := f.addSet(s); err != nil {
			return err
		}
	}
	if err := f.setChains(tx.chains); err != nil {
		return err
	}
	for _, b := range tx.deletes {
		if err := f.delete(b); err != nil {
			return err
		}
	}
	for _, b := range tx.adds {
		if err := f.add(b); err != nil {
			return err
		}
	}
	return f.remove(tx)
}

// missingError is the error of an object that does not exist, as ENOENT.
type missingError string

func (e missingError) Error() string        { return string(e) }
func (e missingError) Is(target error) bool { return target == fs.ErrNotExist }

func missing(format string, args ...any) error { return missingError(fmt.Sprintf(format, args...)) }

func (f *Fake) addSet(s setIn) error {
	state := f.Tables[s.table]
	if state == nil {
		return missing("add set %s %s: no such table", s.table, s.set.Name)
	}
	old, there := state.Sets[s.set.Name]
	if there && !old.Is(s.table.Family, s.set) {
		return fmt.Errorf("add set %s %s: exists with another definition", s.table, s.set.Name)
	}
	if !there {
		state.Sets[s.set.Name] = SetState{definition: s.set.identity(s.table.Family), Elements: Elements{}}
	}
	return nil
}

func (f *Fake) setChains(chains []chainIn) error {
	for _, in := range chains {
		state := f.Tables[in.table]
		if state == nil {
			return missing("add chain %s %s: no such table", in.table, in.chain.Name)
		}
		if old, there := state.Chains[in.chain.Name]; there && !old.SameHook(in.chain) {
			return fmt.Errorf("add chain %s %s: exists with another hook", in.table, in.chain.Name)
		}
		state.Chains[in.chain.Name] = ChainState{hook: in.chain.Hook.text()}
	}
	for _, in := range chains {
		cs := ChainState{hook: in.chain.Hook.text()}
		for _, r := range in.chain.Rules {
			if err := f.resolve(in.table, r); err != nil {
				return fmt.Errorf("add rule %s %s %s: %w", in.table, in.chain.Name, r, err)
			}
			cs.rules = append(cs.rules, canonical(r.exprs()))
		}
		f.Tables[in.table].Chains[in.chain.Name] = cs
		f.Rules[in.table][in.chain.Name] = in.chain.Rules
	}
	return nil
}

// resolve checks that the chains and sets of a rule exist.
func (f *Fake) resolve(t Table, r Rule) error {
	chains, sets := r.uses()
	for _, c := range chains {
		if _, ok := f.Tables[t].Chains[c]; !ok {
			return missing("no such chain: %s", c)
		}
	}
	for _, s := range sets {
		if _, ok := f.Tables[t].Sets[s]; !ok {
			return missing("no such set: %s", s)
		}
	}
	return nil
}

// uses lists the chains and sets a rule names.
func (r Rule) uses() (chains, sets []string) {
	for _, e := range r.exprs() {
		switch e := e.(type) {
		case *expr.Verdict:
			if e.Chain != "" {
				chains = append(chains, e.Chain)
			}
		case *expr.Lookup:
			sets = append(sets, e.SetName)
		case *expr.Dynset:
			sets = append(sets, e.SetName)
		}
	}
	return chains, sets
}

func (f *Fake) set(b bucket) (Elements, error) {
	state := f.Tables[b.table]
	if state == nil {
		return nil, missing("no such table: %s", b.table)
	}
	set, ok := state.Sets[b.set.Name]
	if !ok {
		return nil, missing("no such set: %s %s", b.table, b.set.Name)
	}
	return set.Elements, nil
}

func (f *Fake) add(b bucket) error {
	if len(b.elements) == 0 {
		return nil
	}
	elements, err := f.set(b)
	if err != nil {
		return err
	}
	for _, e := range b.elements {
		old, there := elements.Get(e.id())
		if there && (old.Data != e.Data || old.Goto != e.Goto) {
			return fmt.Errorf("add element %s %s { %s }: exists with other data", b.table, b.set.Name,
				e.text(b.set, b.table.Family))
		}
		if _, ok := f.Tables[b.table].Chains[e.Goto]; e.Goto != "" && !ok {
			return missing("add element %s %s { %s }: no such chain: %s", b.table, b.set.Name, e.text(b.set, b.table.Family),
				e.Goto)
		}
		if other := b.overlapping(e, elements); other != "" && !there {
			return fmt.Errorf("add element %s %s { %s }: overlaps %s", b.table, b.set.Name, e.text(b.set, b.table.Family), other)
		}
		if !there {
			elements.Put(e)
		}
	}
	return nil
}

// overlapping returns a range that shares a key with a new one.
func (b bucket) overlapping(e Element, elements Elements) string {
	if !b.set.Interval {
		return ""
	}
	for _, other := range elements.All() {
		if e.meets(other, b.set, b.table.Family) {
			return other.text(b.set, b.table.Family)
		}
	}
	return ""
}

// meets reports whether two ranges share a key: in each of their fields.
func (e Element) meets(o Element, s Set, f Family) bool {
	at := 0
	for _, t := range s.Key {
		end := at + t.width(f)
		if e.Key[at:end] > o.last(s)[at:end] || o.Key[at:end] > e.last(s)[at:end] {
			return false
		}
		at = end
	}
	return true
}

func (f *Fake) delete(b bucket) error {
	if len(b.elements) == 0 {
		return nil
	}
	elements, err := f.set(b)
	if err != nil {
		return err
	}
	for _, e := range b.elements {
		if _, there := elements[e.id()]; !there {
			return missing("delete element %s %s { %s }: no such element", b.table, b.set.Name, e.text(b.set, b.table.Family))
		}
		delete(elements, e.id())
	}
	return nil
}

// remove empties all chains before it deletes the first.
func (f *Fake) remove(tx *Tx) error {
	for _, g := range tx.flushed {
		state := f.Tables[g.table]
		if state == nil {
			return missing("flush chain %s: no such table: %s", g.name, g.table)
		}
		cs, there := state.Chains[g.name]
		if !there {
			return missing("flush chain %s %s: no such chain", g.table, g.name)
		}
		state.Chains[g.name] = ChainState{hook: cs.hook}
		delete(f.Rules[g.table], g.name)
	}
	for _, g := range tx.gone {
		state := f.Tables[g.table]
		if state == nil {
			return missing("delete %s: no such table: %s", g.name, g.table)
		}
		_, isChain := state.Chains[g.name]
		_, isSet := state.Sets[g.name]
		if g.chain && !isChain || !g.chain && !isSet {
			return missing("delete %s %s: no such object", g.table, g.name)
		}
		if err := f.unused(g); err != nil {
			return err
		}
		if g.chain {
			delete(state.Chains, g.name)
			delete(f.Rules[g.table], g.name)
		} else {
			delete(state.Sets, g.name)
		}
	}
	return nil
}

var errBusy = errors.New("still in use")

func (f *Fake) unused(g goneIn) error {
	for from, rules := range f.Rules[g.table] {
		for _, r := range rules {
			chains, sets := r.uses()
			used := sets
			if g.chain {
				used = chains
			}
			if slices.Contains(used, g.name) {
				return fmt.Errorf("delete %s %s: %w by chain %s", g.table, g.name, errBusy, from)
			}
		}
	}
	for name, s := range f.Tables[g.table].Sets {
		for _, e := range s.Elements.All() {
			if g.chain && e.Goto == g.name {
				return fmt.Errorf("delete %s %s: %w by map %s", g.table, g.name, errBusy, name)
			}
		}
	}
	return nil
}

func (f *Fake) clone() *Fake {
	n := NewFake()
	n.Refuse = f.Refuse
	for t, s := range f.Tables {
		n.Tables[t] = s.clone()
		n.Rules[t] = maps.Clone(f.Rules[t])
	}
	return n
}

func (s *State) clone() *State {
	n := &State{Chains: maps.Clone(s.Chains), Sets: make(map[string]SetState, len(s.Sets)), Dormant: s.Dormant}
	for name, set := range s.Sets {
		n.Sets[name] = SetState{definition: set.definition, Elements: maps.Clone(set.Elements)}
	}
	return n
}
