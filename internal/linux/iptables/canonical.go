package iptables

import "strings"

// Canonical returns the spelling of a rule in which rules are compared, given one that
// PROGRAM-save printed after "-A CHAIN ". Versions of the programs differ in what they
// quote, in defaults that they print, and in how they print numbers
// (iptables/xshared.c, extensions/libxt_*.c). The result is valid input for
// PROGRAM-restore, and means the same rule.
func Canonical(rule string) string {
	var buffer [48]token
	return spell(rule, tokens(buffer[:0], rule))
}

func spell(rule string, list []token) string {
	var b strings.Builder
	b.Grow(len(rule) + 8)
	for i := 0; i < len(list); i++ {
		name := list[i]
		switch {
		case name.quoted:
			word(&b, inQuotes(name.text))
			continue
		case name.text == "--rsource":
			continue
		case i+1 == len(list):
			word(&b, name.text)
			continue
		case isDefault(name.text, list[i+1].text):
			i++
			continue
		}
		word(&b, name.text)
		if text, ok := respell(name.text, list[i+1].text); ok {
			word(&b, text)
			i++
		}
	}
	return b.String()
}

// respell returns the value of an option as it is compared; false: the option is
// compared as it is.
func respell(name, value string) (text string, ok bool) {
	switch name {
	case "-s", "-d":
		return network(value), true
	case "--comment":
		return Quote(value[:min(len(value), maxComment)]), true
	case "--log-prefix":
		return Quote(value), true
	case "--probability":
		return probability(value), true
	case "--mark":
		return mark(value), true
	case "--set-xmark":
		return setMark(value), true
	case "--ctstate":
		return states(value), true
	case "--to-destination":
		return destination(value), true
	}
	return "", false
}

// maxComment is how many bytes of a comment the kernel keeps (XT_MAX_COMMENT_LEN,
// without the zero at its end).
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
