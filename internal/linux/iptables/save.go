package iptables

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Parse returns the tables in a text of PROGRAM-save.
func Parse(text string) map[string]Chains {
	tables, _ := parse(strings.NewReader(text)) // a text in memory can be read
	return tables
}

// parse returns the tables that PROGRAM-save prints, with rules in the spelling of Canonical. A table that does not
// end is an error.
func parse(r io.Reader) (map[string]Chains, error) {
	tables := map[string]Chains{}
	var chains Chains                // nil: between two tables
	name, rules := "", []string(nil) // those of one chain come together
	keep := func() {
		if len(rules) > 0 {
			c := chains[name]
			c.Rules = append(c.Rules, rules...)
			chains[name], rules = c, nil
		}
	}
	var words []token // of the last rule, reused
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "*"):
			chains = Chains{}
			tables[line[1:]] = chains
		case chains == nil:
		case line == "COMMIT":
			keep()
			chains = nil
		case strings.HasPrefix(line, ":"):
			chain, rest, _ := strings.Cut(line[1:], " ")
			policy, _, _ := strings.Cut(rest, " ")
			chains[chain] = Chain{Policy: policy}
		case strings.HasPrefix(line, "-A "):
			chain, rule, _ := strings.Cut(line[len("-A "):], " ")
			if chain != name {
				keep()
				name = strings.Clone(chain)
			}
			words = tokens(words[:0], rule)
			rules = append(rules, spell(rule, words))
		}
	}
	switch {
	case lines.Err() != nil:
		return nil, fmt.Errorf("read line: %w", lines.Err())
	case chains != nil:
		return nil, fmt.Errorf("%w: the last table does not end", io.ErrUnexpectedEOF)
	}
	return tables, nil
}
