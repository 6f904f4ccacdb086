package iptables

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// fakeTable is a table in memory. Rules of a chain are never changed in place.
type fakeTable struct {
	name    string
	builtin []string // in the order in which packets pass them
	chains  map[string]iptables.Chain
	uses    map[string]int // number of rules that jump to a chain
}

func newFakeTable(name string) *fakeTable {
	t := &fakeTable{name: name, chains: map[string]iptables.Chain{}, uses: map[string]int{}}
	switch name {
	case "nat":
		t.builtin = []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}
	case "filter":
		t.builtin = []string{"INPUT", "FORWARD", "OUTPUT"}
	default:
		t.builtin = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
	}
	for _, chain := range t.builtin {
		t.chains[chain] = iptables.Chain{Policy: "ACCEPT"}
	}
	return t
}

// untouched reports whether the table has no rules, no chains except the built-in ones, and no changed policy.
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

// attempt is the application of input to a table.
type attempt struct {
	*fakeTable
	before map[string]iptables.Chain // changed chains, before the change
	made   map[string]bool           // chains that did not exist
	owned  map[string]bool           // chains whose rules are a copy already
}

func (t *fakeTable) begin() *attempt {
	return &attempt{fakeTable: t, before: map[string]iptables.Chain{}, made: map[string]bool{}, owned: map[string]bool{}}
}

// undo restores the state before the attempt.
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

// count updates uses for rules that are added (by 1) or deleted (by -1).
func (a *attempt) count(rules []string, by int) {
	for _, rule := range rules {
		to := iptables.Target(rule)
		if a.uses[to] += by; a.uses[to] == 0 {
			delete(a.uses, to)
		}
	}
}

// remember saves the state of a chain before its first change.
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

// programError is an error with the message of the programs.
type programError string

func (s programError) Error() string { return string(s) }

const errNoChain = programError("No chain/target/match by that name.")

func (a *attempt) do(c command) error {
	_, there := a.chains[c.name]
	switch {
	case c.verb == ":", c.verb == "-N":
		return a.declare(c, there)
	case !there:
		return errNoChain
	}
	a.remember(c.name)
	switch c.verb {
	case "-A":
		return a.insert(c, len(a.chains[c.name].Rules))
	case "-I":
		return a.insert(c, max(c.at-1, 0))
	case "-D":
		return a.remove(c)
	case "-F":
		a.flush(c.name)
		return nil
	case "-X":
		return a.drop(c.name)
	}
	return fmt.Errorf("unknown option %q", c.verb)
}

// declare creates a chain, or empties an existing one. Built-in chains keep their rules and get a policy.
func (a *attempt) declare(c command, there bool) error {
	switch {
	case there && c.verb == "-N":
		return programError("Chain already exists.")
	case !there:
		if err := checkName(c.name); err != nil {
			return err
		}
		a.remember(c.name)
		a.chains[c.name] = iptables.Chain{Policy: "-"}
		return nil
	}
	a.remember(c.name)
	if !slices.Contains(a.builtin, c.name) {
		a.flush(c.name)
		return nil
	}
	if c.rest == "ACCEPT" || c.rest == "DROP" {
		chain := a.chains[c.name]
		chain.Policy = c.rest
		a.chains[c.name] = chain
	}
	return nil
}

func (a *attempt) flush(name string) {
	c := a.chains[name]
	a.count(c.Rules, -1)
	c.Rules = nil
	a.owned[name] = true
	a.chains[name] = c
}

func (a *attempt) drop(name string) error {
	switch {
	case slices.Contains(a.builtin, name):
		return errors.New("it is built in")
	case len(a.chains[name].Rules) > 0:
		return programError("Directory not empty")
	case a.uses[name] > 0:
		return programError("Too many links")
	}
	delete(a.chains, name)
	return nil
}

func (a *attempt) insert(c command, at int) error {
	rule := iptables.Canonical(c.rest)
	chain := a.own(c.name)
	if at > len(chain.Rules) {
		return programError("Index of insertion too big.")
	}
	if err := a.check(rule); err != nil {
		return err
	}
	chain.Rules = slices.Insert(chain.Rules, at, rule)
	a.chains[c.name] = chain
	a.count([]string{rule}, 1)
	return nil
}

// own returns a chain whose rules may be changed in place.
func (a *attempt) own(name string) iptables.Chain {
	c := a.chains[name]
	if !a.owned[name] {
		a.owned[name] = true
		c.Rules = slices.Clone(c.Rules)
	}
	return c
}

func (a *attempt) remove(c command) error {
	rule := iptables.Canonical(c.rest)
	chain := a.own(c.name)
	i := slices.Index(chain.Rules, rule)
	if c.at > 0 {
		i = c.at - 1
	}
	if i < 0 || i >= len(chain.Rules) {
		return programError("Bad rule (does a matching rule exist in that chain?).")
	}
	rule = chain.Rules[i]
	chain.Rules = slices.Delete(chain.Rules, i, i+1)
	a.chains[c.name] = chain
	a.count([]string{rule}, -1)
	return nil
}

// check returns an error for a rule whose target is neither a chain nor a target of this table.
func (a *attempt) check(rule string) error {
	to := iptables.Target(rule)
	if _, there := a.chains[to]; there {
		if slices.Contains(a.builtin, to) {
			return programError("Invalid argument")
		}
		return nil
	}
	switch to {
	case "DROP":
		if a.name == "nat" {
			return programError(`The "nat" table is not intended for filtering, the use of DROP is therefore inhibited.`)
		}
		return nil
	case "", "ACCEPT", "RETURN", "MARK", "LOG", "NFLOG", "CONNMARK":
		return nil
	case "DNAT", "SNAT", "MASQUERADE", "REDIRECT":
		if a.name == "nat" {
			return nil
		}
		return programError("Invalid argument")
	case "REJECT":
		if a.name == "filter" {
			return nil
		}
		return programError("Invalid argument")
	}
	return programError(fmt.Sprintf("Chain '%s' does not exist", to))
}

// maxName is the maximum length of the name of a chain (XT_EXTENSION_MAXNAMELEN without the terminating zero).
const maxName = 28

func checkName(name string) error {
	switch {
	case name == "":
		return programError("a chain has no name")
	case len(name) > maxName:
		return fmt.Errorf("chain name %q is longer than %d characters", name, maxName)
	case strings.ContainsAny(name[:1], "-!") || strings.ContainsAny(name, " \t\n"):
		return fmt.Errorf("chain name %q is not valid", name)
	}
	return nil
}
