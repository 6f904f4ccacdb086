package rules

import (
	"fmt"
	"strings"
)

// Dump is the output of iptables-save, by table.
type Dump map[string]Table

// Table is the chains of a table, by name.
type Table map[string]Chain

// Chain is a chain with its rules in order, without "-A NAME ".
type Chain struct {
	Policy string // of a built-in chain; "-" for others
	Rules  []string
}

// Parse parses the output of iptables-save. It ignores comments and counters.
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

// parser is the state of Parse.
type parser struct {
	dump  Dump
	table Table // nil: not in a table
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
		return fmt.Errorf("expected the beginning of a table")
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
	return fmt.Errorf("expected a chain or a rule")
}

func (p *parser) rule(text string) error {
	name, rule, _ := strings.Cut(text, " ")
	c, ok := p.table[name]
	if !ok {
		return fmt.Errorf("the rule is in an unknown chain")
	}
	c.Rules = append(c.Rules, rule)
	p.table[name] = c
	return nil
}
