package iptables

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fakeTable is a table in memory. Rules of a chain are never changed in place.
type fakeTable struct {
	name    string
	builtin []string // in the order of the packet's way
	chains  map[string]Chain
	uses    map[string]int // how many rules lead to a chain
}

func newFakeTable(name string) *fakeTable {
	t := &fakeTable{name: name, chains: map[string]Chain{}, uses: map[string]int{}}
	switch name {
	case "nat":
		t.builtin = []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}
	case "filter":
		t.builtin = []string{"INPUT", "FORWARD", "OUTPUT"}
	default:
		t.builtin = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
	}
	for _, chain := range t.builtin {
		t.chains[chain] = Chain{Policy: "ACCEPT"}
	}
	return t
}

// untouched reports whether nobody ever made anything here.
func (t *fakeTable) untouched() bool {
	if len(t.chains) != len(t.builtin) {
		return false
	}
	for _, c := range t.chains {
		if len(c.Rules) > 0 || c.Policy != "ACCEPT" {
			return false
		}
	}
	return true
}

// String prints chains and rules.
func (t *fakeTable) String() string {
	names := slices.Clone(t.builtin)
	for _, name := range slices.Sorted(maps.Keys(t.chains)) {
		if !slices.Contains(t.builtin, name) {
			names = append(names, name)
		}
	}
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, ":%s %s [0:0]\n", name, t.chains[name].Policy)
	}
	for _, name := range names {
		for _, rule := range t.chains[name].Rules {
			b.WriteString(strings.TrimRight("-A "+name+" "+rule, " ") + "\n")
		}
	}
	return b.String()
}

// attempt is input that is being carried out on a table.
type attempt struct {
	*fakeTable
	before map[string]Chain // what was changed, as it was
	made   map[string]bool  // chains that were not there
	owned  map[string]bool  // chains whose rules are a copy already
	done   []change
}

func (t *fakeTable) begin() *attempt {
	return &attempt{fakeTable: t, before: map[string]Chain{}, made: map[string]bool{}, owned: map[string]bool{}}
}

// undo makes the table what it was.
func (a *attempt) undo() {
	for name := range a.made {
		a.count(a.chains[name].Rules, -1)
		delete(a.chains, name)
	}
	for name, c := range a.before {
		a.count(a.chains[name].Rules, -1)
		a.count(c.Rules, 1)
		a.chains[name] = c
	}
}

// count notes that rules come (1) or go (-1).
func (a *attempt) count(rules []string, by int) {
	for _, rule := range rules {
		to := Target(rule)
		if a.uses[to] += by; a.uses[to] == 0 {
			delete(a.uses, to)
		}
	}
}

// remember keeps what a chain is, once.
func (a *attempt) remember(name string) {
	if _, there := a.before[name]; there || a.made[name] {
		return
	}
	c, there := a.chains[name]
	if !there {
		a.made[name] = true
		return
	}
	a.before[name] = c
}

// said is an error in the words of the programs.
type said string

func (s said) Error() string { return string(s) }

const errNoChain = said("No chain/target/match by that name.")

func (a *attempt) do(c command) error {
	_, there := a.chains[c.chain]
	switch {
	case c.verb == ":", c.verb == "-N":
		return a.declare(c, there)
	case !there:
		return errNoChain
	}
	a.remember(c.chain)
	switch c.verb {
	case "-A":
		return a.insert(c, len(a.chains[c.chain].Rules))
	case "-I":
		return a.insert(c, max(c.at-1, 0))
	case "-D":
		return a.remove(c)
	case "-F":
		a.flush(c.chain)
		return nil
	case "-X":
		return a.drop(c.chain)
	}
	return fmt.Errorf("unknown option %q", c.verb)
}

// declare makes a chain, or empties it if it is there. Those of the kernel keep
// their rules and get a policy.
func (a *attempt) declare(c command, there bool) error {
	switch {
	case there && c.verb == "-N":
		return said("Chain already exists.")
	case !there:
		if err := CheckName(c.chain); err != nil {
			return err
		}
		a.remember(c.chain)
		a.chains[c.chain] = Chain{Policy: "-"}
		a.note(c.chain, "chain "+c.chain)
		return nil
	}
	a.remember(c.chain)
	if !slices.Contains(a.builtin, c.chain) {
		a.flush(c.chain)
		return nil
	}
	if c.rest == "ACCEPT" || c.rest == "DROP" {
		chain := a.chains[c.chain]
		chain.Policy = c.rest
		a.chains[c.chain] = chain
	}
	return nil
}

func (a *attempt) note(chain, what string, rules ...string) {
	a.done = append(a.done, change{chain: chain, what: what, rules: rules})
}

func (a *attempt) flush(name string) {
	c := a.chains[name]
	a.count(c.Rules, -1)
	a.note(name, "rule of "+name, c.Rules...)
	c.Rules = nil
	a.owned[name] = true
	a.chains[name] = c
}

func (a *attempt) drop(name string) error {
	switch {
	case slices.Contains(a.builtin, name):
		return errors.New("it is built in")
	case len(a.chains[name].Rules) > 0:
		return said("Directory not empty")
	case a.uses[name] > 0:
		return said("Too many links")
	}
	delete(a.chains, name)
	a.note(name, "chain "+name)
	return nil
}

func (a *attempt) insert(c command, at int) error {
	rule := Canonical(c.rest)
	chain := a.own(c.chain)
	if at > len(chain.Rules) {
		return said("Index of insertion too big.")
	}
	if err := a.check(rule); err != nil {
		return err
	}
	chain.Rules = slices.Insert(chain.Rules, at, rule)
	a.chains[c.chain] = chain
	a.count([]string{rule}, 1)
	a.note(c.chain, "rule of "+c.chain, rule)
	return nil
}

// own returns a chain with rules that may be changed.
func (a *attempt) own(name string) Chain {
	c := a.chains[name]
	if !a.owned[name] {
		a.owned[name] = true
		c.Rules = slices.Clone(c.Rules)
	}
	return c
}

func (a *attempt) remove(c command) error {
	rule := Canonical(c.rest)
	chain := a.own(c.chain)
	i := slices.Index(chain.Rules, rule)
	if c.at > 0 {
		i = c.at - 1
	}
	if i < 0 || i >= len(chain.Rules) {
		return said("Bad rule (does a matching rule exist in that chain?).")
	}
	rule = chain.Rules[i]
	chain.Rules = slices.Delete(chain.Rules, i, i+1)
	a.chains[c.chain] = chain
	a.count([]string{rule}, -1)
	a.note(c.chain, "rule of "+c.chain, rule)
	return nil
}

// check refuses a rule that leads to no chain and is no target of this table.
func (a *attempt) check(rule string) error {
	to := Target(rule)
	if _, there := a.chains[to]; there {
		if slices.Contains(a.builtin, to) {
			return said("Invalid argument")
		}
		return nil
	}
	switch to {
	case "DROP":
		if a.name == "nat" {
			return said(`The "nat" table is not intended for filtering, the use of DROP is therefore inhibited.`)
		}
		return nil
	case "", "ACCEPT", "RETURN", "MARK", "LOG", "NFLOG", "CONNMARK":
		return nil
	case "DNAT", "SNAT", "MASQUERADE", "REDIRECT":
		if a.name == "nat" {
			return nil
		}
		return said("Invalid argument")
	case "REJECT":
		if a.name == "filter" {
			return nil
		}
		return said("Invalid argument")
	}
	return said(fmt.Sprintf("Chain '%s' does not exist", to))
}
