package rules

import (
	"fmt"
	"strings"
)

// Dump is what iptables-save printed, by the name of the table.
type Dump map[string]Table

// Table is the chains of a table, by name.
type Table map[string]Chain

// Chain is a chain with its rules in their order, as they stand behind
// "-A NAME ".
type Chain struct {
	Policy string // of a built-in chain; "-" for others
	Rules  []string
}

// Parse reads what iptables-save printed. Comments and counters are left out.
func Parse(text string) (Dump, error) {
	p := parser{dump: Dump{}}
	n := 0
	for line := range strings.Lines(text) {
		n++
		if err := p.line(strings.TrimSuffix(line, "\n")); err != nil {
			return nil, fmt.Errorf("line %d: %w: %s", n, err, strings.TrimSpace(line))
		}
	}
	if p.table != nil {
		return nil, fmt.Errorf("line %d: a table has no COMMIT", n)
	}
	return p.dump, nil
}

// parser is where Parse has come to.
type parser struct {
	dump  Dump
	table Table // nil: outside of one
}

func (p *parser) line(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	switch {
	case word == "" || word[0] == '#':
		return nil
	case word[0] == '*' && p.table == nil && p.dump[word[1:]] == nil:
		p.table = Table{}
		p.dump[word[1:]] = p.table
		return nil
	case p.table == nil:
		return fmt.Errorf("it is not the beginning of a table")
	case word == "COMMIT":
		p.table = nil
		return nil
	case word[0] == ':':
		policy, _, _ := strings.Cut(rest, " ")
		p.table[word[1:]] = Chain{Policy: policy}
		return nil
	case word == "-A":
		return p.rule(rest)
	}
	return fmt.Errorf("it is neither a chain nor a rule")
}

func (p *parser) rule(text string) error {
	name, rule, _ := strings.Cut(text, " ")
	c, ok := p.table[name]
	if !ok {
		return fmt.Errorf("it is of a chain that was not named before")
	}
	c.Rules = append(c.Rules, rule)
	p.table[name] = c
	return nil
}
