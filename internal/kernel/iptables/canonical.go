package iptables

import (
	"math"
	"strings"
)

// Canonical returns the one spelling that all spellings of a rule share, so that
// what PROGRAM-save prints can be compared with what was written. It is valid
// input for PROGRAM-restore as well. The rule is what stands behind "-A CHAIN ".
//
// It follows what iptables does when it reads and prints (iptables/xshared.c,
// libxtables/xtables.c, extensions/libxt_*.c): addresses, interfaces and the
// protocol come first, options go with the match they belong to, numbers are as
// precise as the kernel keeps them, defaults are left out.
func Canonical(rule string) string {
	return new(spelling).canonical(rule)
}

// token is a word of a rule, without its quotes.
type token struct {
	text   string
	quoted bool
}

// split divides a rule as iptables-restore does: words are separated by blanks,
// and in double quotes a backslash makes the next character one like any other.
func split(tokens []token, rule string) []token {
	for i := 0; i < len(rule); {
		if rule[i] == ' ' || rule[i] == '\t' || rule[i] == '\n' {
			i++
			continue
		}
		if rule[i] == '"' {
			text, next := unquote(rule, i+1)
			tokens = append(tokens, token{text, true})
			i = next
			continue
		}
		end := i
		for end < len(rule) && rule[end] != ' ' && rule[end] != '\t' && rule[end] != '\n' {
			end++
		}
		tokens = append(tokens, token{text: rule[i:end]})
		i = end
	}
	return tokens
}

// unquote reads what is in quotes, and says where it goes on behind them.
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

// option is an option with what follows it.
type option struct {
	part   int // of what: its index; head for those of no match
	not    bool
	name   string
	values [2]string
	number int // of values
}

const head = -1

// part is a match ("-m") or what becomes of the packet ("-j", "-g").
type part struct{ flag, name string }

// spelling is a rule taken apart. It may be used for one after the other.
type spelling struct {
	tokens   []token
	protocol string
	options  []option
	parts    []part
}

func (s *spelling) canonical(rule string) string {
	const usual = 16 // no rule of kube-proxy's shapes has more options
	if s.tokens == nil {
		s.tokens, s.options, s.parts = make([]token, 0, 2*usual), make([]option, 0, usual), make([]part, 0, usual/2)
	}
	s.tokens, s.options, s.parts, s.protocol = split(s.tokens[:0], rule), s.options[:0], s.parts[:0], ""
	s.parse(s.tokens)
	return s.print(len(rule))
}

func (s *spelling) parse(tokens []token) {
	not := false
	for i := 0; i < len(tokens); {
		t := tokens[i]
		i++
		if t.text == "!" && !t.quoted {
			not = true
			continue
		}
		o := option{part: len(s.parts) - 1, not: not, name: t.text}
		for i < len(tokens) && o.number < o.room() && o.takes(tokens[i]) {
			o.values[o.number] = tokens[i].text
			o.number++
			i++
		}
		not = false
		switch o.name {
		case "-m", "--match", "-j", "--jump", "-g", "--goto":
			s.parts = append(s.parts, part{flag: short(o.name), name: o.values[0]})
		default:
			s.add(o)
		}
	}
}

// room returns how many words may belong to an option.
func (o option) room() int {
	switch short(o.name) {
	case "-m", "-j", "-g":
		return 1
	}
	return len(o.values)
}

// takes reports whether a word belongs to the option before it.
func (o option) takes(t token) bool {
	if t.quoted || o.name == "--comment" && o.number == 0 {
		return true
	}
	return t.text != "!" && !strings.HasPrefix(t.text, "-")
}

func short(name string) string {
	switch name {
	case "--match":
		return "-m"
	case "--jump":
		return "-j"
	case "--goto":
		return "-g"
	case "--source", "--src":
		return "-s"
	case "--destination", "--dst":
		return "-d"
	case "--in-interface":
		return "-i"
	case "--out-interface":
		return "-o"
	case "--protocol", "--proto":
		return "-p"
	case "--source-port":
		return "--sport"
	case "--destination-port":
		return "--dport"
	}
	return name
}

// add puts an option where it belongs, spelled as the kernel keeps it.
func (s *spelling) add(o option) {
	o.name = short(o.name)
	v := &o.values[0]
	switch o.name {
	case "-s", "-d":
		o.part, *v = head, network(*v)
		if !o.not && (*v == "0.0.0.0/0" || *v == "::/0") {
			return
		}
	case "-i", "-o":
		o.part = head
	case "-p":
		o.part, *v = head, strings.ToLower(*v)
		s.protocol = *v
	case "--sport", "--dport":
		o.part = s.ofProtocol(o.part)
	case "--probability":
		*v = probability(*v)
	case "--mark":
		*v = mark(*v, math.MaxUint32)
	case "--or-mark", "--and-mark", "--xor-mark", "--set-mark", "--set-xmark":
		o.name, *v = setMark(o.name, *v)
	case "--ctstate":
		*v = states(*v)
	case "--comment":
		*v = (*v)[:min(len(*v), maxComment)]
	case "--to-destination":
		*v = destination(*v)
	default:
		if o.number <= 1 && byDefault(o.name, *v) {
			return
		}
	}
	s.options = append(s.options, o)
}

// maxComment is how many bytes of a comment iptables keeps
// (XT_MAX_COMMENT_LEN, with the zero at its end).
const maxComment = 255

// ofProtocol returns the match that ports belong to: the one of the protocol,
// which iptables adds if it is not there.
func (s *spelling) ofProtocol(current int) int {
	if s.protocol == "" {
		return current
	}
	for i, p := range s.parts {
		if p.flag == "-m" && p.name == s.protocol {
			return i
		}
	}
	s.parts = append(s.parts, part{flag: "-m", name: s.protocol})
	return len(s.parts) - 1
}

// print puts the rule together again.
func (s *spelling) print(size int) string {
	var b strings.Builder
	b.Grow(size + 32)
	for _, name := range [6]string{"-s", "-d", "-i", "-o", "-p", ""} {
		for _, o := range s.options {
			if o.part == head && first(o.name) == name {
				o.print(&b)
			}
		}
	}
	for i, p := range s.parts {
		if p.flag == "-m" {
			s.printPart(&b, i)
		}
	}
	for i, p := range s.parts {
		if p.flag != "-m" {
			s.printPart(&b, i)
		}
	}
	return b.String()
}

// first returns the name of an option that has its place before all others.
func first(name string) string {
	switch name {
	case "-s", "-d", "-i", "-o", "-p":
		return name
	}
	return ""
}

func (s *spelling) printPart(b *strings.Builder, i int) {
	p := s.parts[i]
	if p.flag == "-m" && p.name == s.protocol && !s.has(i) {
		return // it says nothing that the protocol does not
	}
	word(b, p.flag)
	if p.name != "" {
		word(b, protect(p.name))
	}
	for place := range ranks {
		for _, o := range s.options {
			if o.part == i && (p.name == "recent" && rank(o.name) == place || p.name != "recent" && place == 0) {
				o.print(b)
			}
		}
	}
}

// has reports whether a part has options.
func (s *spelling) has(part int) bool {
	for _, o := range s.options {
		if o.part == part {
			return true
		}
	}
	return false
}

// ranks is how many ranks there are.
const ranks = 6

// rank is the place of an option among those of the match "recent".
func rank(name string) int {
	switch name {
	case "--seconds":
		return 1
	case "--reap":
		return 2
	case "--hitcount":
		return 3
	case "--rttl":
		return 4
	case "--name":
		return 5
	}
	return 0
}

func (o option) print(b *strings.Builder) {
	if o.not {
		word(b, "!")
	}
	word(b, protect(o.name))
	for _, v := range o.values[:o.number] {
		if o.name == "--comment" || o.name == "--log-prefix" {
			v = quote(v)
		} else {
			v = protect(v)
		}
		word(b, v)
	}
}

func word(b *strings.Builder, s string) {
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	b.WriteString(s)
}
