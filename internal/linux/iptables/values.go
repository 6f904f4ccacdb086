package iptables

import (
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

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

// network returns an address or network as it is compared.
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

// destination returns the argument of DNAT as it is compared.
func destination(s string) string {
	if !strings.HasPrefix(s, "[") {
		return s
	}
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a.String()
	}
	return s
}

// probability returns a probability as the kernel keeps it, with 31 bits.
func probability(s string) string {
	p, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return s
	}
	return strconv.FormatFloat(math.Round(p*(1<<31))/(1<<31), 'f', 11, 64)
}

// parseMark reads "VALUE/MASK", or "VALUE", which stands for all bits.
func parseMark(s string) (value, mask uint32, ok bool) {
	a, b, both := strings.Cut(s, "/")
	v, err := strconv.ParseUint(a, 0, 32)
	if err != nil {
		return 0, 0, false
	}
	if !both {
		return uint32(v), math.MaxUint32, true
	}
	n, err := strconv.ParseUint(b, 0, 32)
	return uint32(v), uint32(n), err == nil
}

func hex(n uint32) string { return "0x" + strconv.FormatUint(uint64(n), 16) }

// mark returns the mark that a packet must have as it is compared.
func mark(s string) string {
	value, mask, ok := parseMark(s)
	switch {
	case !ok:
		return s
	case mask == math.MaxUint32:
		return hex(value)
	}
	return hex(value) + "/" + hex(mask)
}

// setMark returns a change of the mark as it is compared: bits of the mask are cleared,
// then bits of the value inverted.
func setMark(s string) string {
	value, mask, ok := parseMark(s)
	if !ok {
		return s
	}
	return hex(value) + "/" + hex(mask)
}

// states returns states of conntrack in the order in which PROGRAM-save prints them.
func states(s string) string {
	if !strings.Contains(s, ",") {
		return s
	}
	var b strings.Builder
	known := 0
	list := strings.Split(s, ",")
	for _, state := range []string{"INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT"} {
		if slices.Contains(list, state) {
			if b.Len() > 0 {
				b.WriteByte(',')
			}
			b.WriteString(state)
			known++
		}
	}
	if known != len(list) {
		return s
	}
	return b.String()
}

// Quote returns free text, such as a comment, as PROGRAM-save prints it
// (xtables_save_string).
func Quote(s string) string {
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
