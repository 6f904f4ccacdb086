package iptables

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
)

// Fake is the programs and the kernel in memory. It refuses what they refuse,
// and takes each table of input as a whole or not at all. Its fields are set
// before use.
type Fake struct {
	// Fail, if set, may refuse input before it is carried out.
	Fail func(f Family, input []byte) error
	// FailRead, if set, may refuse to read a table.
	FailRead func(Table) error

	Space int // what Room returns; 0: no limit

	mu       sync.Mutex
	restores int
	lines    int
	tables   map[Table]*fakeTable
	watchers map[*fakeWatcher]bool
}

type fakeWatcher struct {
	ours func(chain string) bool
	tell func(Edit)
}

// NewFake returns a host on which nobody has made rules: both families have the
// tables nat, filter and mangle, with the chains that hooks lead to.
func NewFake() *Fake {
	f := &Fake{tables: map[Table]*fakeTable{}, watchers: map[*fakeWatcher]bool{}}
	for _, family := range []Family{IPv4, IPv6} {
		for _, name := range []string{"nat", "filter", "mangle"} {
			f.tables[Table{family, name}] = newFakeTable(name)
		}
	}
	return f
}

// Room is as that of Tools.
func (f *Fake) Room() int {
	if f.Space == 0 {
		return math.MaxInt
	}
	return f.Space
}

// Restores returns how many inputs Restore was given, refused ones included.
func (f *Fake) Restores() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.restores
}

// Lines returns how many lines of input Restore was given: chains and rules.
func (f *Fake) Lines() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lines
}

// Read is as that of Tools.
func (f *Fake) Read(ctx context.Context, table Table) (Chains, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.FailRead != nil {
		if err := f.FailRead(table); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	chains := Chains{}
	if t := f.tables[table]; t != nil {
		for name, c := range t.chains {
			chains[name] = Chain{Policy: c.Policy, Rules: slices.Clone(c.Rules)}
		}
	}
	return chains, nil
}

// Restore is as that of Tools.
func (f *Fake) Restore(ctx context.Context, family Family, input []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	f.restores++
	f.mu.Unlock()
	if f.Fail != nil {
		if err := f.Fail(family, input); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.run(family, string(input), &f.lines)
	return err
}

// Edit is what another program does with the same input, which may have -F in it
// besides. Whoever watches is told, if it is about chains of theirs.
func (f *Fake) Edit(family Family, input string) error {
	f.mu.Lock()
	done, err := f.run(family, input, new(int))
	told := f.told(done)
	f.mu.Unlock()
	for _, tell := range told {
		tell()
	}
	return err
}

// Drop is what "nft delete table" does: everything in the table is gone, and the
// chains that hooks lead to come back with the next use of it.
func (f *Fake) Drop(table Table) {
	f.mu.Lock()
	var done []change
	if t := f.tables[table]; t != nil {
		for name, c := range t.chains {
			done = append(done, change{table: table, chain: name, what: "chain " + name, rules: c.Rules})
		}
		f.tables[table] = newFakeTable(table.Name)
	}
	told := f.told(done)
	f.mu.Unlock()
	for _, tell := range told {
		tell()
	}
}

// Lose plays that the kernel had more to tell than it could keep.
func (f *Fake) Lose() {
	f.mu.Lock()
	watchers := slices.Collect(maps.Keys(f.watchers))
	f.mu.Unlock()
	for _, w := range watchers {
		w.tell(Edit{What: lost})
	}
}

// Watch is as that of Tools: it tells of what Edit, Drop and Lose do.
func (f *Fake) Watch(ctx context.Context, ours func(chain string) bool, subscribed func(), tell func(Edit)) error {
	w := &fakeWatcher{ours: ours, tell: tell}
	f.mu.Lock()
	f.watchers[w] = true
	f.mu.Unlock()
	subscribed()
	<-ctx.Done()
	f.mu.Lock()
	delete(f.watchers, w)
	f.mu.Unlock()
	return nil
}

// told returns what to call for the edits that matter to those who watch.
func (f *Fake) told(done []change) []func() {
	var calls []func()
	for w := range f.watchers {
		for _, c := range done {
			if c.concerns(w.ours) {
				edit := Edit{What: c.what + " in " + c.table.Name, By: "another program"}
				calls = append(calls, func() { w.tell(edit) })
				break
			}
		}
	}
	return calls
}

// change is something that was done.
type change struct {
	table Table
	chain string
	what  string
	rules []string // that came, went or moved
}

func (c change) concerns(ours func(string) bool) bool {
	return ours(c.chain) || slices.ContainsFunc(c.rules, func(rule string) bool { return ours(Target(rule)) })
}

// run carries input out, and returns what it did.
func (f *Fake) run(family Family, input string, lines *int) ([]change, error) {
	program := programName(family, "-fake-restore")
	var all []change
	var current *attempt
	err := commands(input, func(c command) error {
		refuse := func(err error) error {
			return &RestoreError{
				Program: program, Line: c.line, Rule: lineOf(input, c.line), Reason: err.Error(), Committed: committed(input, c.line),
			}
		}
		switch {
		case c.verb == "*" && (current != nil || f.tables[Table{family, c.table}] == nil):
			return refuse(fmt.Errorf("unable to initialize table '%s'", c.table))
		case c.verb == "*":
			current = f.tables[Table{family, c.table}].begin()
			return nil
		case current == nil:
			return refuse(fmt.Errorf("no table is named before it"))
		case c.verb == "COMMIT":
			for i := range current.done {
				current.done[i].table = Table{family, c.table}
			}
			all = append(all, current.done...)
			current = nil
			return nil
		}
		*lines++
		if err := current.do(c); err != nil {
			return refuse(err)
		}
		return nil
	})
	if current != nil {
		current.undo()
	}
	if err == nil && current != nil {
		err = &RestoreError{Program: program, Reason: "COMMIT expected"}
	}
	return all, err
}

// String prints all tables that have something in them, as PROGRAM-save does,
// those of IPv4 first.
func (f *Fake) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, family := range []Family{IPv4, IPv6} {
		for _, name := range []string{"mangle", "nat", "filter"} {
			if t := f.tables[Table{family, name}]; !t.untouched() {
				fmt.Fprintf(&b, "# %s\n*%s\n%sCOMMIT\n", programName(family), name, t)
			}
		}
	}
	return b.String()
}
