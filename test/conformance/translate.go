//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/sluice-proxy/sluice/test/lab"
)

// translator replaces in the text of a scenario each IPv4 address and prefix with its IPv6
// counterpart (lab.Analog), and the word IPv4 with IPv6.
type translator struct{ ipv6 bool }

// dotted matches IPv4 addresses, prefixes, and addresses with a port.
const dotted = `\b(\d{1,3}(?:\.\d{1,3}){3})(/\d+)?(:\d+)?\b`

func (tr translator) text(s string) string {
	if !tr.ipv6 {
		return s
	}
	s = strings.ReplaceAll(s, "IPv4", "IPv6")
	return regexp.MustCompile(dotted).ReplaceAllStringFunc(s, translateMatch)
}

func (tr translator) texts(list []string) []string {
	out := make([]string, 0, len(list))
	for _, s := range list {
		out = append(out, tr.text(s))
	}
	return out
}

func translateMatch(s string) string {
	if p, err := netip.ParsePrefix(s); err == nil {
		return prefixAnalog(p).String()
	}
	if a, err := netip.ParseAddrPort(s); err == nil {
		return netip.AddrPortFrom(lab.Analog(a.Addr()), a.Port()).String()
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return lab.Analog(a).String()
	}
	return s // invalid on purpose
}

// prefixAnalog returns the IPv6 prefix that holds the counterparts of the addresses in p. It
// panics if there is none, which is a mistake in the text of a scenario.
func prefixAnalog(p netip.Prefix) netip.Prefix {
	switch p.String() {
	case "0.0.0.0/0":
		return netip.MustParsePrefix("::/0")
	case "0.0.0.0/1":
		return netip.MustParsePrefix("::/1")
	case "128.0.0.0/1":
		return netip.MustParsePrefix("8000::/1")
	case "203.0.113.0/24":
		return netip.MustParsePrefix("2001:db8:113::/64")
	case "203.0.113.0/25": // holds ::2, not ::130
		return netip.MustParsePrefix("2001:db8:113::/120")
	case "192.168.0.0/24":
		return netip.MustParsePrefix("2001:db8::/64")
	case "192.168.1.0/24":
		return netip.MustParsePrefix("2001:db8:1::/64")
	}
	if p.Bits() == 32 {
		return netip.PrefixFrom(lab.Analog(p.Addr()), 128)
	}
	if p.Bits()%8 != 0 || p.Bits() == 0 {
		panic(fmt.Sprintf("no IPv6 prefix stands for %s", p))
	}
	return netip.PrefixFrom(lab.Analog(p.Addr()), 16+2*p.Bits()).Masked()
}
