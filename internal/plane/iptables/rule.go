package iptables

import (
	"net/netip"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// rule is a rule of a Service, with its fields in the order of iptables-save. An empty
// field matches every packet. Its text has the spelling of iptables.Canonical.
type rule struct {
	from     source
	to       string // an address range
	protocol cluster.Protocol
	comment  string
	match    string // another match: "addrtype --dst-type LOCAL"
	port     uint16 // of protocol; 0: any
	counter  string // object of nfacct that counts matching packets; empty: none
	target   string // "KUBE-SVC-NPX46M4PTMTKRN6Y", "DNAT --to-destination 10.0.0.1:80"; empty: none
}

// source is the origin of packets: an address range or an interface. The zero value
// matches every packet.
type source struct {
	not   bool // matches all other origins
	cidr  string
	iface string // a name, or a prefix and "+"
}

// sourceIn returns an address range.
func sourceIn(cidr netip.Prefix) source {
	if cidr.Bits() == 0 {
		return source{}
	}
	return source{cidr: cidr.Masked().String()}
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
	if r.to != "" {
		word("-d", r.to)
	}
	if r.from.iface != "" {
		word(r.from.flag("-i"), r.from.iface)
	}
	if r.protocol != 0 {
		word("-p", r.protocol.String())
	}
	if r.comment != "" {
		word("-m comment --comment", iptables.Quote(r.comment))
	}
	if r.match != "" {
		word("-m", r.match)
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

// single returns the range that contains only this address.
func single(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }
