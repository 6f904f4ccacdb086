package iptables

import (
	"bytes"
	"maps"
	"slices"
	"strings"
)

// Owner selects what a program owns in a table: chains with all their rules, and rules of
// other chains by the chain to which they jump.
type Owner struct {
	Chain func(name string) bool
	Jump  func(from Chain, target string) bool
}

// Ruleset returns what a program owns in a table, as the text of PROGRAM-save; empty if it owns
// nothing. The chains are sorted: two rulesets are equal if their texts are.
func (o Owner) Ruleset(table string, chains Chains) string {
	var names, rules, jumps []string
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		c, own := chains[name], o.Chain(name)
		if own {
			names = append(names, ":"+name+" -\n")
		}
		for _, rule := range c.Rules {
			switch {
			case own:
				rules = append(rules, "-A "+name+" "+rule+"\n")
			case o.Jump(c, Target(rule)):
				jumps = append(jumps, "-A "+name+" "+rule+"\n")
			}
		}
	}
	if len(names)+len(jumps) == 0 {
		return ""
	}
	return "*" + table + "\n" + strings.Join(slices.Concat(names, rules, jumps), "") + "COMMIT\n"
}

// Parse returns the tables in a text of PROGRAM-save.
func Parse(text string) map[string]Chains {
	tables := map[string]Chains{}
	_ = commands(text, func(c command) error { // it returns no error
		switch c.verb {
		case "*":
			tables[c.table] = Chains{}
		case ":":
			tables[c.table][c.chain] = Chain{Policy: c.rest}
		case "-A":
			chain := tables[c.table][c.chain]
			chain.Rules = append(chain.Rules, c.rest)
			tables[c.table][c.chain] = chain
		}
		return nil
	})
	return tables
}

// owned is what a program owns in a table.
type owned struct {
	names map[string]bool     // chains
	rules []string            // lines after "-A "
	jumps map[string][]string // the same, by other chains
}

// parse returns the tables of a ruleset.
func parse(ruleset string) map[string]owned {
	tables := map[string]owned{}
	_ = commands(ruleset, func(c command) error { // it returns no error
		t := tables[c.table]
		line := c.chain + " " + c.rest + "\n"
		switch {
		case c.verb == "*":
			t.names, t.jumps = map[string]bool{}, map[string][]string{}
		case c.verb == ":":
			t.names[c.chain] = true
		case c.verb == "-A" && t.names[c.chain]:
			t.rules = append(t.rules, line)
		case c.verb == "-A":
			t.jumps[c.chain] = append(t.jumps[c.chain], line)
		}
		tables[c.table] = t
		return nil
	})
	return tables
}

// Replace returns the input of PROGRAM-restore that replaces a ruleset by another one. A
// table changes as a whole; one that is the same is left out.
func Replace(old, now string) []byte {
	var b bytes.Buffer
	before, after := parse(old), parse(now)
	for _, table := range slices.Sorted(maps.Keys(union(before, after))) {
		if text := before[table].replace(after[table]); text != "" {
			b.WriteString("*" + table + "\n" + text + "COMMIT\n")
		}
	}
	return b.Bytes()
}

// replace returns the commands for one table; empty if nothing differs.
func (o owned) replace(now owned) string {
	var names, deleted, gone, added []string
	for _, name := range slices.Sorted(maps.Keys(union(o.names, now.names))) {
		names = append(names, name+" - [0:0]\n")
		if !now.names[name] {
			deleted = append(deleted, name+"\n")
		}
	}
	for _, chain := range slices.Sorted(maps.Keys(union(o.jumps, now.jumps))) {
		if !slices.Equal(o.jumps[chain], now.jumps[chain]) {
			gone, added = append(gone, o.jumps[chain]...), append(added, now.jumps[chain]...)
		}
	}
	if maps.Equal(o.names, now.names) && slices.Equal(o.rules, now.rules) && len(gone)+len(added) == 0 {
		return ""
	}
	slices.Reverse(added) // -I adds each in front of the ones before
	var b strings.Builder
	for _, part := range []struct {
		verb  string
		lines []string
	}{{":", names}, {"-A ", now.rules}, {"-D ", gone}, {"-I ", added}, {"-X ", deleted}} {
		for _, line := range part.lines {
			b.WriteString(part.verb + line)
		}
	}
	return b.String()
}

func union[V any](a, b map[string]V) map[string]V {
	all := map[string]V{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}
