package iptables

import (
	"bytes"
	"maps"
	"slices"
	"strings"
)

// Owner selects what a program owns in the tables of a family: chains with all their
// rules, and rules of other chains by the chain to which they jump.
type Owner struct {
	Chain func(table, name string) bool
	Jump  func(table, target string) bool
}

// Ruleset returns what a program owns in tables, by their names, as the text of
// PROGRAM-save. The chains are sorted, and so are the rules of other chains: two
// rulesets are equal if their texts are.
func (o Owner) Ruleset(tables map[string]Chains) string {
	var b strings.Builder
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		var names, rules, jumps []string
		for _, name := range slices.Sorted(maps.Keys(tables[table])) {
			own := o.Chain(table, name)
			if own {
				names = append(names, ":"+name+"\n")
			}
			for _, rule := range tables[table][name].Rules {
				switch {
				case own:
					rules = append(rules, "-A "+name+" "+rule+"\n")
				case o.Jump(table, Target(rule)):
					jumps = append(jumps, "-A "+name+" "+rule+"\n")
				}
			}
		}
		if len(names)+len(jumps) > 0 {
			slices.Sort(jumps)
			b.WriteString("*" + table + "\n" + strings.Join(slices.Concat(names, rules, jumps), "") + "COMMIT\n")
		}
	}
	return b.String()
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
	names        map[string]bool // chains
	rules, jumps []string        // lines after "-A "
}

// parse returns the tables of a ruleset.
func parse(ruleset string) map[string]owned {
	tables := map[string]owned{}
	_ = commands(ruleset, func(c command) error { // it returns no error
		t := tables[c.table]
		line := c.chain + " " + c.rest + "\n"
		switch {
		case c.verb == "*":
			t.names = map[string]bool{}
		case c.verb == ":":
			t.names[c.chain] = true
		case c.verb == "-A" && t.names[c.chain]:
			t.rules = append(t.rules, line)
		case c.verb == "-A":
			t.jumps = append(t.jumps, line)
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
	gone, added := without(o.jumps, now.jumps), without(now.jumps, o.jumps)
	if maps.Equal(o.names, now.names) && slices.Equal(o.rules, now.rules) && len(gone)+len(added) == 0 {
		return ""
	}
	var names, deleted []string
	for _, name := range slices.Sorted(maps.Keys(union(o.names, now.names))) {
		names = append(names, name+" - [0:0]\n")
		if !now.names[name] {
			deleted = append(deleted, name+"\n")
		}
	}
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

// without returns lines without those of others, each as often as they have it.
func without(lines, others []string) []string {
	left := slices.Clone(lines)
	for _, line := range others {
		if i := slices.Index(left, line); i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
	}
	return left
}
