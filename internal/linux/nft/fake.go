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

// Fake is nf_tables in memory. It refuses what the kernel refuses: a key that exists with other data, an element that
// is missing, a chain or set that is missing or still in use. A refused transaction changes nothing.
type Fake struct {
	Tables  map[Table]*State
	Rules   map[Table]map[string][]Rule // by chain, to find what they use
	Commits int
	Fail    func(tx *Tx) error // if set, may fail a transaction before it is carried out

	// Refuse, if set, may refuse an element or a chain, given as nft commands: "add
	// element ip t s { 10.0.0.1 }", "add chain ip t c", "add rule ip t c drop".
	Refuse func(command string) error

	Space int // what Room returns; 0: a megabyte

	undo []func() // restores the elements that a transaction has changed
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
func (f *Fake) Read(_ context.Context, t Table, _ []ExpectedKeys) (*State, error) {
	s := f.Tables[t]
	if s == nil {
		return nil, nil
	}
	return s.clone(), nil
}

// Copy returns the tables as they are, which later transactions do not change.
func (f *Fake) Copy() map[Table]*State {
	n := map[Table]*State{}
	for t, s := range f.Tables {
		n[t] = s.clone()
	}
	return n
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
	err := next.run(tx)
	if err != nil {
		for _, restore := range slices.Backward(next.undo) {
			restore()
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return &RefusedError{err}
		}
		return err
	}
	f.Tables, f.Rules = next.Tables, next.Rules
	f.Commits++
	return nil
}

func (f *Fake) run(tx *Tx) error {
	for _, o := range tx.all() {
		if err := f.refuse(o); err != nil {
			return err
		}
	}
	for _, o := range tx.all() {
		if err := f.execute(o); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fake) refuse(o op) error {
	if f.Refuse == nil {
		return nil
	}
	var commands strings.Builder
	o.print(&commands)
	for line := range strings.Lines(commands.String()) {
		line = strings.TrimSuffix(line, "\n")
		if err := f.Refuse(line); err != nil && strings.HasPrefix(line, "add ") {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}

func (f *Fake) execute(o op) error {
	state := f.Tables[o.table]
	switch {
	case o.kind == addTable && state == nil:
		f.Tables[o.table] = &State{Chains: map[string]ChainState{}, Sets: map[string]SetState{}}
		f.Rules[o.table] = map[string][]Rule{}
		return nil
	case o.kind == addTable:
		state.Dormant = false
		return nil
	case len(o.elements) == 0 && (o.kind == deleteElements || o.kind == addElements): // after Reset
		return nil
	case state == nil:
		return missing("no such table: %s", o.table)
	}
	switch o.kind {
	case dropTable:
		delete(f.Tables, o.table)
		delete(f.Rules, o.table)
	case addSet:
		return f.addSet(o)
	case addChain:
		return f.addChain(o)
	case fillChain:
		return f.fillChain(o)
	case deleteElements:
		return f.delete(o)
	case addElements:
		return f.add(o)
	case flushChain:
		return f.flush(o)
	case deleteSet, deleteChain:
		return f.remove(o)
	case addTable: // see above
	}
	return nil
}

// missingError is the error of an object that does not exist, as ENOENT.
type missingError string

func (e missingError) Error() string        { return string(e) }
func (e missingError) Is(target error) bool { return target == fs.ErrNotExist }

func missing(format string, args ...any) error { return missingError(fmt.Sprintf(format, args...)) }

func (f *Fake) addSet(o op) error {
	sets := f.Tables[o.table].Sets
	old, there := sets[o.set.Name]
	if there && !old.Is(o.table.Family, o.set) {
		return fmt.Errorf("add set %s %s: exists with another definition", o.table, o.set.Name)
	}
	if !there {
		sets[o.set.Name] = SetState{definition: o.set.identity(o.table.Family), Elements: Elements{}}
	}
	return nil
}

func (f *Fake) addChain(o op) error {
	chains := f.Tables[o.table].Chains
	if old, there := chains[o.chain.Name]; there && !old.SameHook(o.chain) {
		return fmt.Errorf("add chain %s %s: exists with another hook", o.table, o.chain.Name)
	}
	chains[o.chain.Name] = ChainState{hook: o.chain.Hook.text()}
	return nil
}

func (f *Fake) fillChain(o op) error {
	state := ChainState{hook: o.chain.Hook.text()}
	for _, r := range o.chain.Rules {
		if err := f.resolve(o.table, r); err != nil {
			return fmt.Errorf("add rule %s %s %s: %w", o.table, o.chain.Name, r, err)
		}
		state.rules = append(state.rules, canonical(r.exprs()))
	}
	f.Tables[o.table].Chains[o.chain.Name] = state
	f.Rules[o.table][o.chain.Name] = o.chain.Rules
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

func (f *Fake) add(o op) error {
	state := f.Tables[o.table]
	set, ok := state.Sets[o.set.Name]
	if !ok {
		return missing("no such set: %s %s", o.table, o.set.Name)
	}
	for _, e := range o.elements {
		failed := func() string {
			return fmt.Sprintf("add element %s %s { %s }", o.table, o.set.Name, e.text(o.set, o.table.Family))
		}
		old, there := set.Elements.Get(e.id())
		if there && (old.Data != e.Data || old.Goto != e.Goto) {
			return fmt.Errorf("%s: exists with other data", failed())
		}
		if _, ok := state.Chains[e.Goto]; e.Goto != "" && !ok {
			return missing("%s: no such chain: %s", failed(), e.Goto)
		}
		if other := o.overlapping(e, set.Elements); other != "" && !there {
			return fmt.Errorf("%s: overlaps %s", failed(), other)
		}
		if !there {
			set.Elements.Put(e)
			f.undo = append(f.undo, func() { delete(set.Elements, e.id()) })
		}
	}
	return nil
}

func (f *Fake) delete(o op) error {
	set, ok := f.Tables[o.table].Sets[o.set.Name]
	if !ok {
		return missing("no such set: %s %s", o.table, o.set.Name)
	}
	for _, e := range o.elements {
		id := e.id()
		old, there := set.Elements[id]
		if !there {
			return missing("delete element %s %s { %s }: no such element", o.table, o.set.Name, e.text(o.set, o.table.Family))
		}
		delete(set.Elements, id)
		f.undo = append(f.undo, func() { set.Elements[id] = old })
	}
	return nil
}

func (f *Fake) flush(o op) error {
	state := f.Tables[o.table]
	chain, there := state.Chains[o.chain.Name]
	if !there {
		return missing("flush chain %s %s: no such chain", o.table, o.chain.Name)
	}
	state.Chains[o.chain.Name] = ChainState{hook: chain.hook}
	delete(f.Rules[o.table], o.chain.Name)
	return nil
}

// remove deletes a chain or a set.
func (f *Fake) remove(o op) error {
	state, name := f.Tables[o.table], o.chain.Name+o.set.Name
	_, isChain := state.Chains[name]
	_, isSet := state.Sets[name]
	if o.kind == deleteChain && !isChain || o.kind == deleteSet && !isSet {
		return missing("delete %s %s: no such object", o.table, name)
	}
	if err := f.unused(o, name); err != nil {
		return err
	}
	if o.kind == deleteSet {
		delete(state.Sets, name)
		return nil
	}
	delete(state.Chains, name)
	delete(f.Rules[o.table], name)
	return nil
}

var errBusy = errors.New("still in use")

// unused verifies that nothing uses the chain or the set that an operation deletes.
func (f *Fake) unused(o op, name string) error {
	t, isChain := o.table, o.kind == deleteChain
	for from, rules := range f.Rules[t] {
		for _, r := range rules {
			used, sets := r.uses()
			if !isChain {
				used = sets
			}
			if slices.Contains(used, name) {
				return fmt.Errorf("delete %s %s: %w by chain %s", t, name, errBusy, from)
			}
		}
	}
	for set, s := range f.Tables[t].Sets {
		for _, e := range s.Elements.All() {
			if isChain && e.Goto == name {
				return fmt.Errorf("delete %s %s: %w by map %s", t, name, errBusy, set)
			}
		}
	}
	return nil
}

// clone returns a Fake with the same elements, not with copies of them: a transaction changes few of many.
func (f *Fake) clone() *Fake {
	n := NewFake()
	n.Refuse = f.Refuse
	for t, s := range f.Tables {
		n.Tables[t] = &State{Chains: maps.Clone(s.Chains), Sets: maps.Clone(s.Sets), Dormant: s.Dormant}
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

// String returns the state as sorted text.
func (s *State) String() string {
	if s == nil {
		return "no table\n"
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.Sets)) {
		set := s.Sets[name]
		fmt.Fprintf(&b, "set %s %s\n", name, set.definition)
		for _, k := range slices.Sorted(maps.Keys(set.Elements)) {
			e, _ := set.Elements.Get(k)
			fmt.Fprintf(&b, "  %x-%x : %x %s %q\n", e.Key, e.End, e.Data, e.Goto, e.Comment)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Chains)) {
		c := s.Chains[name]
		fmt.Fprintf(&b, "chain %s%s\n", name, c.hook)
		for _, r := range c.rules {
			fmt.Fprintf(&b, "  %s\n", r)
		}
	}
	return b.String()
}
