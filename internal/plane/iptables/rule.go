package iptables

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// rule is a rule of a Service, field by field in the order of iptables-save. An
// empty field matches every packet.
type rule struct {
	from     source
	to       netip.Addr
	loopback bool // to 127.0.0.0/8
	protocol cluster.Protocol
	comment  string
	match    string // any other, in words of iptables: "-m addrtype --dst-type LOCAL"
	port     uint16 // of protocol; 0: any
	counter  string // object of nfacct that counts what matches; empty: none
	target   string // "KUBE-SVC-NPX46M4PTMTKRN6Y", "DNAT --to-destination 10.0.0.1:80"; empty: none
}

// loopbackRange are the addresses that a host has for itself.
const loopbackRange = "127.0.0.0/8"

// source says where packets come from: an address range or an interface.
type source struct {
	not   bool // from anywhere else
	cidr  string
	iface string // a name, or its beginning and "+"
}

// String returns the rule as iptables-save prints it after "-A CHAIN ".
func (r rule) String() string { return string(r.append(nil)) }

// append adds the rule to a text.
func (r rule) append(b []byte) []byte {
	start := len(b)
	word := func(flag, value string) {
		if len(b) > start {
			b = append(b, ' ')
		}
		b = append(append(b, flag...), ' ')
		b = append(b, value...)
	}
	if r.from.cidr != "" {
		word(r.from.flag("-s"), r.from.cidr)
	}
	if r.to.IsValid() {
		word("-d", single(r.to))
	}
	if r.loopback {
		word("-d", loopbackRange)
	}
	if r.from.iface != "" {
		word(r.from.flag("-i"), r.from.iface)
	}
	if r.protocol != 0 {
		word("-p", r.protocol.String())
	}
	if r.comment != "" {
		word("-m comment --comment", quote(r.comment))
	}
	if r.match != "" {
		name, rest, _ := strings.Cut(r.match, " ")
		word(name, rest)
	}
	if r.protocol != 0 {
		word("-m", r.protocol.String())
	}
	if r.port != 0 {
		word("--dport", strconv.Itoa(int(r.port)))
	}
	if r.counter != "" {
		word("-m nfacct --nfacct-name", r.counter)
	}
	if r.target != "" {
		word("-j", r.target)
	}
	return b
}

func (s source) flag(name string) string {
	if s.not {
		return "! " + name
	}
	return name
}

// single prints an address as the range of it alone.
func single(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// quote prints a comment as a word of iptables-restore.
func quote(s string) string {
	if !strings.ContainsAny(s, `"\'`) {
		return `"` + s + `"`
	}
	return `"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`, `'`, `\'`).Replace(s) + `"`
}
