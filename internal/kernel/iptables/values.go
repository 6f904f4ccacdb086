package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// byDefault reports whether an option says what is so without it, and what
// PROGRAM-save prints all the same.
func byDefault(name, value string) bool {
	switch name {
	case "--rsource":
		return true
	case "--mask":
		return value == "255.255.255.255" || value == "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	case "--reject-with":
		return value == "icmp-port-unreachable" || value == "icmp6-port-unreachable"
	}
	return false
}

// network spells an address or network.
func network(s string) string {
	address, bits, ok := strings.Cut(s, "/")
	a, err := netip.ParseAddr(address)
	if err != nil {
		return s
	}
	length := a.BitLen()
	if ok {
		if length, err = strconv.Atoi(bits); err != nil {
			return s
		}
	}
	p, err := a.Prefix(length)
	if err != nil {
		return s
	}
	return p.String()
}

// destination spells where DNAT leads to.
func destination(s string) string {
	if !strings.HasPrefix(s, "[") {
		return s
	}
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a.String()
	}
	return s
}

// probability is what the kernel keeps of it: a number of 31 bits.
func probability(s string) string {
	p, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return s
	}
	return strconv.FormatFloat(math.Round(p*(1<<31))/(1<<31), 'f', 11, 64)
}

// pair reads "VALUE/MASK", or "VALUE" with a mask that goes without saying.
func pair(s string, mask uint32) (value, m uint32, ok bool) {
	a, b, both := strings.Cut(s, "/")
	v, err := strconv.ParseUint(a, 0, 32)
	if err != nil {
		return 0, 0, false
	}
	if !both {
		return uint32(v), mask, true
	}
	n, err := strconv.ParseUint(b, 0, 32)
	return uint32(v), uint32(n), err == nil
}

func hex(n uint32) string { return "0x" + strconv.FormatUint(uint64(n), 16) }

// mark spells the mark a packet must have.
func mark(s string, all uint32) string {
	value, mask, ok := pair(s, all)
	switch {
	case !ok:
		return s
	case mask == math.MaxUint32:
		return hex(value)
	}
	return hex(value) + "/" + hex(mask)
}

// setMark spells each of the ways to say how a mark changes as the one the
// kernel knows: bits of the mask are cleared, then bits of the value inverted.
func setMark(name, s string) (option, value string) {
	v, mask, ok := pair(s, math.MaxUint32)
	if !ok {
		return name, s
	}
	switch name {
	case "--or-mark":
		mask = v
	case "--and-mark":
		v, mask = 0, ^v
	case "--xor-mark":
		mask = 0
	case "--set-mark":
		mask |= v
	}
	return "--set-xmark", hex(v) + "/" + hex(mask)
}

// states spells states of conntrack in the order in which they are printed.
func states(s string) string {
	if !strings.Contains(s, ",") {
		return s
	}
	var b strings.Builder
	known := 0
	given := strings.Split(strings.ToUpper(s), ",")
	for _, state := range []string{"INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT"} {
		if slices.Contains(given, state) {
			if b.Len() > 0 {
				b.WriteByte(',')
			}
			b.WriteString(state)
			known++
		}
	}
	if known != len(given) {
		return s
	}
	return b.String()
}

// protect quotes a word that would not be one without.
func protect(s string) string {
	if s == "" || strings.ContainsAny(s, " \t\n\"") {
		return quote(s)
	}
	return s
}

// quote spells free text as PROGRAM-save does (xtables_save_string).
func quote(s string) string {
	if s != "" && strings.IndexFunc(s, special) < 0 {
		return s
	}
	if strings.ContainsAny(s, `"\'`) {
		s = strings.NewReplacer(`"`, `\"`, `\`, `\\`, `'`, `\'`).Replace(s)
	}
	return fmt.Sprintf(`"%s"`, s)
}

func special(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
		return false
	}
	return true
}
