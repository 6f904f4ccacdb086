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

// Canonical returns the spelling of a rule in which rules are compared, given one that PROGRAM-save printed after "-A
// CHAIN ". Versions of the programs differ in what they quote, and in defaults that they print (iptables/xshared.c,
// extensions/libxt_*.c). The result is valid input for PROGRAM-restore, and means the same rule.
func Canonical(rule string) string {
	var buffer [48]token
	return spell(rule, tokens(buffer[:0], rule))
}

func spell(rule string, list []token) string {
	var b strings.Builder
	b.Grow(len(rule) + 8)
	for i := 0; i < len(list); i++ {
		name, value := list[i], ""
		if i+1 < len(list) {
			value = list[i+1].text
		}
		switch {
		case name.quoted:
			word(&b, inQuotes(name.text))
		case name.text == "--rsource":
		case isDefault(name.text, value):
			i++
		case name.text == "--comment" && i+1 < len(list):
			word(&b, name.text)
			word(&b, Quote(value))
			i++
		default:
			word(&b, name.text)
		}
	}
	return b.String()
}

// isDefault reports whether an option with a value has no effect.
func isDefault(name, value string) bool {
	switch name {
	case "--mask":
		return value == "255.255.255.255" || value == "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	case "--reject-with":
		return value == "icmp-port-unreachable" || value == "icmp6-port-unreachable"
	}
	return false
}

// maxComment is how many bytes of a comment the kernel keeps (XT_MAX_COMMENT_LEN, without the zero at its end).
const maxComment = 255

// token is a word of a rule, without its quotes.
type token struct {
	text   string
	quoted bool
}

// tokens appends the words of a rule to a list. It divides a rule as iptables-restore
// does: at blanks, and in double quotes a backslash escapes the next character.
func tokens(list []token, rule string) []token {
	for i := 0; i < len(rule); {
		if rule[i] == ' ' || rule[i] == '\t' || rule[i] == '\n' {
			i++
			continue
		}
		if rule[i] == '"' {
			text, next := unquote(rule, i+1)
			list = append(list, token{text, true})
			i = next
			continue
		}
		end := i
		for end < len(rule) && rule[end] != ' ' && rule[end] != '\t' && rule[end] != '\n' {
			end++
		}
		list = append(list, token{text: rule[i:end]})
		i = end
	}
	return list
}

// unquote returns the text from start to the closing quote, and the index after that.
func unquote(rule string, start int) (text string, next int) {
	var b strings.Builder
	from := start
	for i := start; i < len(rule); i++ {
		switch rule[i] {
		case '"':
			if b.Len() == 0 {
				return rule[from:i], i + 1
			}
			return b.String() + rule[from:i], i + 1
		case '\\':
			b.WriteString(rule[from:i])
			i++
			from = i
		}
	}
	return b.String() + rule[min(from, len(rule)):], len(rule)
}

func word(b *strings.Builder, s string) {
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	b.WriteString(s)
}

// Target returns the chain or the target of a rule, such as "KUBE-SERVICES" or "DNAT"; empty if it has none.
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

// Quote returns a comment as PROGRAM-save prints it (xtables_save_string).
func Quote(s string) string {
	s = s[:min(len(s), maxComment)]
	if s != "" && strings.IndexFunc(s, special) < 0 {
		return s
	}
	return inQuotes(s)
}

func special(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
		return false
	}
	return true
}

func inQuotes(s string) string {
	if strings.ContainsAny(s, `"\'`) {
		s = strings.NewReplacer(`"`, `\"`, `\`, `\\`, `'`, `\'`).Replace(s)
	}
	return `"` + s + `"`
}
