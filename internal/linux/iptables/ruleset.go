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

// Expand is Parse of a text in which {NAME} stands for a value: a line is one for each value of the name,
// and none if it has none.
func Expand(text string, values map[string][]string) map[string]Chains {
	var b strings.Builder
	for line := range strings.Lines(text) {
		expand(&b, line, values)
	}
	return Parse(b.String())
}

func expand(b *strings.Builder, line string, values map[string][]string) {
	before, rest, found := strings.Cut(line, "{")
	if !found || strings.HasPrefix(line, "#") {
		b.WriteString(line)
		return
	}
	name, after, _ := strings.Cut(rest, "}")
	for _, value := range values[name] {
		expand(b, before+value+after, values)
	}
}

// Replace returns the input of PROGRAM-restore that replaces a ruleset by another one. A
// table changes as a whole; one that is the same is left out.
func Replace(old, now string) []byte {
	var b bytes.Buffer
	before, after := Parse(old), Parse(now)
	for _, table := range slices.Sorted(maps.Keys(union(before, after))) {
		if text := replace(before[table], after[table]); text != "" {
			b.WriteString("*" + table + "\n" + text + "COMMIT\n")
		}
	}
	return b.Bytes()
}

// replace returns the commands that replace the chains and jumps of a table; empty if nothing differs.
func replace(old, now Chains) string {
	if maps.EqualFunc(old, now, func(a, b Chain) bool { return slices.Equal(a.Rules, b.Rules) }) {
		return ""
	}
	var names, rules, gone, added, deleted []string
	for _, name := range slices.Sorted(maps.Keys(union(old, now))) {
		had, existed := old[name]
		has, stays := now[name]
		switch jumps := (!existed || had.Builtin()) && (!stays || has.Builtin()); {
		case !jumps:
			names = append(names, name+" - [0:0]")
			rules = appendRules(rules, name, has)
			if !stays {
				deleted = append(deleted, name)
			}
		case !slices.Equal(had.Rules, has.Rules):
			gone, added = appendRules(gone, name, had), appendRules(added, name, has)
		}
	}
	slices.Reverse(added) // -I adds each in front of the ones before
	var b strings.Builder
	for _, part := range []struct {
		verb  string
		lines []string
	}{{":", names}, {"-A ", rules}, {"-D ", gone}, {"-I ", added}, {"-X ", deleted}} {
		for _, line := range part.lines {
			b.WriteString(part.verb + line + "\n")
		}
	}
	return b.String()
}

func appendRules(lines []string, chain string, c Chain) []string {
	for _, rule := range c.Rules {
		lines = append(lines, chain+" "+rule)
	}
	return lines
}

func union[V any](a, b map[string]V) map[string]V {
	all := map[string]V{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}
