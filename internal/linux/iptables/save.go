package iptables

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// parseSave reads what PROGRAM-save prints of one table.
func parseSave(r io.Reader, table string) (Chains, error) {
	chains := Chains{}
	name, rules := "", []string(nil) // those of one chain come together
	keep := func() {
		if name != "" {
			c := chains[name]
			c.Rules = append(c.Rules, rules...)
			chains[name] = c
		}
		rules = nil
	}
	inside, complete := false, false
	var words []token // of the last rule, reused
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "*"):
			inside = line[1:] == table
		case !inside:
		case line == "COMMIT":
			inside, complete = false, true
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
	keep()
	switch {
	case lines.Err() != nil:
		return nil, fmt.Errorf("read line: %w", lines.Err())
	case !complete:
		return nil, fmt.Errorf("%w: table %s does not end", io.ErrUnexpectedEOF, table)
	}
	return chains, nil
}
