package iptables

import (
	"strconv"
	"strings"
)

// command is one line of what PROGRAM-restore reads.
type command struct {
	line  int    // from 1
	table string // of the command
	verb  string // "*", ":", "COMMIT", "-A", "-I", "-D", "-X", "-F", "-N", "-P"
	chain string
	at    int    // of -I and -D: the number of the rule; 0: none given
	rest  string // the rule, or the policy
}

// commands calls fn for each line of input that is not empty or a comment, until fn
// returns an error.
func commands(input string, fn func(command) error) error {
	c := command{}
	for line := range strings.Lines(input) {
		c.line++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		c.read(line)
		if err := fn(c); err != nil {
			return err
		}
		if c.verb == "COMMIT" {
			c.table = ""
		}
	}
	return nil
}

// read takes a line apart.
func (c *command) read(line string) {
	c.chain, c.rest, c.at = "", "", 0
	switch line[0] {
	case '*':
		c.verb, c.table = "*", line[1:]
		return
	case ':':
		c.verb = ":"
		c.chain, c.rest, _ = strings.Cut(line[1:], " ")
		c.rest, _, _ = strings.Cut(c.rest, " ")
		return
	}
	c.verb, c.rest, _ = strings.Cut(line, " ")
	c.chain, c.rest, _ = strings.Cut(strings.TrimSpace(c.rest), " ")
	if c.verb != "-I" && c.verb != "-D" {
		return
	}
	first, rest, _ := strings.Cut(c.rest, " ")
	if n, err := strconv.Atoi(first); err == nil {
		c.at, c.rest = n, rest
	}
}

// lineOf returns a line of input.
func lineOf(input string, number int) string {
	n := 0
	for line := range strings.Lines(input) {
		if n++; n == number {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// Target returns the chain or the target of a rule, such as "KUBE-SERVICES" or "DNAT";
// empty if it has none.
func Target(rule string) string {
	var buffer [48]token
	words := tokens(buffer[:0], rule)
	for i, t := range words[:max(len(words)-1, 0)] {
		if !t.quoted && (t.text == "-j" || t.text == "-g") && (i == 0 || words[i-1].text != "--comment") {
			return words[i+1].text
		}
	}
	return ""
}
