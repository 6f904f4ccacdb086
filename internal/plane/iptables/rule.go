package iptables

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// rule is a rule of a Service, with its fields in the order of iptables-save. An empty
// field matches every packet. Its text has the spelling of iptables.Canonical.
type rule struct {
	from     string // a match of the source: "-s 10.180.0.0/24", "! -i cali+"
	to       string // an address range
	protocol cluster.Protocol
	comment  string
	match    string // another match: "addrtype --dst-type LOCAL"
	port     uint16 // of protocol; 0: any
	counter  string // object of nfacct that counts matching packets; empty: none
	target   string // "KUBE-SVC-NPX46M4PTMTKRN6Y", "DNAT --to-destination 10.0.0.1:80"; empty: none
}

// append adds the rule to a text, as iptables-save prints it after "-A CHAIN ".
func (r rule) append(b []byte) []byte {
	start := len(b)
	word := func(words ...string) {
		for _, w := range words {
			if len(b) > start {
				b = append(b, ' ')
			}
			b = append(b, w...)
		}
	}
	byInterface := strings.Contains(r.from, "-i ")
	if r.from != "" && !byInterface {
		word(r.from)
	}
	if r.to != "" {
		word("-d", r.to)
	}
	if byInterface {
		word(r.from)
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

// single returns the range that contains only this address.
func single(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }
