package ipvs

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/ipset"
	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// state is what Refresh read.
type state struct {
	device  bool
	addrs   map[netip.Addr]bool // on the interface
	bound   map[netip.Addr]bool // the same, and those in sets; not used up
	servers map[ipvs.Server]*found
	sets    map[string]*ipset.Set
	chains  map[route.Family]map[string]iptables.Chains // by table
}

// found is a virtual server in the kernel.
type found struct {
	settings ipvs.Settings
	dests    map[netip.AddrPort]uint32 // weights
	drains   []netip.AddrPort          // those of weight 0 that have connections
	taken    bool
}

// listing compares the kernel with the entries that it should hold. It implements
// ledger.Listing, and removes what is taken from the state.
type listing struct {
	state
	opt    Options
	wanted map[key]bool    // chains and jumps
	ports  map[uint16]bool // NodePorts
	drains drains          // that Rest found
}

func newListing(s state, opt Options) *listing {
	l := &listing{state: s, opt: opt, wanted: map[key]bool{}, ports: map[uint16]bool{}, drains: drains{}}
	for name, set := range s.sets {
		for m := range set.Members {
			if strings.Contains(name, "NODE-PORT") {
				l.ports[m.Port] = true
			}
			if !strings.HasSuffix(name, loopBack) && m.Addr.IsValid() {
				l.bound[m.Addr] = true
			}
		}
	}
	return l
}

// Take implements ledger.Listing.
func (l *listing) Take(want entry) (had value, is ledger.Match) {
	k, exists := want.Key, false
	switch k.class {
	case device:
		had, exists = want.Value, l.device
	case address:
		had, exists = want.Value, l.addrs[k.at.Addr()]
		delete(l.addrs, k.at.Addr())
	case set:
		if s := l.sets[setName(k.family, k.name)]; s != nil {
			had.kind, exists = s.Kind, true
		}
	case member:
		if s := l.sets[setName(k.family, k.name)]; s != nil {
			had.mark, exists = s.Members[k.member]
			delete(s.Members, k.member)
		}
	case chain:
		l.wanted[k] = true
		var c iptables.Chain
		if c, exists = l.chainOf(k); exists {
			had.rules = join(c.Rules)
		}
	case jump:
		l.wanted[k] = true
		_, rule := splitJump(k.name)
		c, _ := l.chainOf(k)
		had, exists = want.Value, slices.Contains(c.Rules, rule)
	case server:
		if s := l.servers[k.server]; s != nil {
			had.settings, exists, s.taken = s.settings, true, true
		}
	case destination:
		if s := l.servers[k.server]; s != nil {
			had.weight, exists = s.dests[k.at]
			delete(s.dests, k.at)
		}
	}
	switch {
	case !exists:
		return value{}, ledger.Absent
	case had == want.Value:
		return had, ledger.Equal
	}
	return had, ledger.Different
}

// chainOf returns the chain that a key names, which begins with the table.
func (l *listing) chainOf(k key) (iptables.Chain, bool) {
	table, name, _ := strings.Cut(k.name, " ")
	name, _, _ = strings.Cut(name, " ")
	c, exists := l.chains[k.family][table][name]
	return c, exists
}

// splitJump returns the table and chain of a jump, and its rule.
func splitJump(name string) (at, rule string) {
	table, rest, _ := strings.Cut(name, " ")
	in, rule, _ := strings.Cut(rest, " ")
	return table + " " + in, rule
}

func join(rules []string) string {
	var b strings.Builder
	for _, rule := range rules {
		b.WriteString(rule + "\n")
	}
	return b.String()
}

// Rest implements ledger.Listing. It leaves out what drains, virtual servers of other
// programs, and chains that rules of other programs may need.
func (l *listing) Rest() []step {
	var list []step
	remove := func(k key, old value) { list = append(list, step{Op: ledger.Remove, Key: k, Old: old}) }
	for s, f := range l.servers {
		if !f.taken && !l.owns(s) {
			continue
		}
		for at, weight := range f.dests {
			if f.taken && !isUDP(s) && slices.Contains(f.drains, at) {
				l.drains.add(s, at, time.Time{})
				continue
			}
			remove(key{class: destination, server: s, at: at}, value{weight: weight})
		}
		if !f.taken {
			remove(key{class: server, server: s}, value{settings: f.settings})
		}
	}
	for a := range l.addrs {
		remove(key{class: address, at: netip.AddrPortFrom(a, 0)}, value{})
	}
	for _, f := range l.opt.Families {
		for name, kind := range setKinds(f) {
			if s := l.sets[setName(f, name)]; s != nil && s.Kind == kind {
				for m, mark := range s.Members {
					remove(key{class: member, family: f, name: name, member: m}, value{mark: mark})
				}
			}
		}
		l.restOfChains(f, remove)
	}
	return list
}

// owns reports whether a virtual server that no Service needs is kube-proxy's or ours: at
// an address on the interface or in the sets, at a NodePort, or for a mark.
func (l *listing) owns(s ipvs.Server) bool {
	excluded := slices.ContainsFunc(l.opt.Exclude, func(p netip.Prefix) bool { return s.Mark == 0 && p.Contains(s.Addr) })
	return !excluded && (isShortCut(s.Mark) || s.Mark == 0 && (l.bound[s.Addr] || isNodePort(s.Port) || l.ports[s.Port]))
}

// isNodePort reports whether a port is in the default range of an API server.
func isNodePort(port uint16) bool { return port >= 30000 && port <= 32767 }

// restOfChains removes chains of kube-proxy in any mode that the plane does not have, and
// jumps to them.
func (l *listing) restOfChains(f route.Family, remove func(key, value)) {
	for table, chains := range l.chains[f] {
		for name, c := range chains {
			k := key{class: chain, family: f, name: table + " " + name}
			if kubechain.Proxy(name) {
				if !l.wanted[k] {
					remove(k, value{rules: join(c.Rules)})
				}
				continue
			}
			for _, rule := range c.Rules {
				j := key{class: jump, family: f, name: table + " " + name + " " + rule}
				to := iptables.Target(rule)
				if kubechain.Proxy(to) && to != markMasq && !l.wanted[j] {
					remove(j, value{})
				}
			}
		}
	}
}

// Other programs jump to the first chain as well, and need the second one.
const (
	markMasq    = "KUBE-MARK-MASQ"
	postrouting = "KUBE-POSTROUTING"
)

// removal is the listing of a plan that removes everything.
type removal struct{ *listing }

// Take implements ledger.Listing: no entry is wanted.
func (*removal) Take(entry) (had value, is ledger.Match) { return value{}, ledger.Absent }

// Rest implements ledger.Listing. It keeps KUBE-MARK-MASQ, and the chain that masquerades,
// while rules of other programs jump to the former.
func (r *removal) Rest() []step {
	marked := map[route.Family]bool{}
	for f, of := range r.chains {
		for name, c := range of["nat"] {
			if !kubechain.Proxy(name) && slices.ContainsFunc(c.Rules, func(rule string) bool { return iptables.Target(rule) == markMasq }) {
				marked[f] = true
			}
		}
	}
	list := slices.DeleteFunc(r.listing.Rest(), func(s step) bool {
		kept := s.Key.class == chain && (s.Key.name == "nat "+markMasq || s.Key.name == "nat "+postrouting) ||
			s.Key.class == jump && iptables.Target(s.Key.name) == postrouting
		return s.Key.class == member || kept && marked[s.Key.family]
	})
	for _, f := range r.opt.Families {
		for name := range setKinds(f) {
			if r.sets[setName(f, name)] != nil && (name != loopBack || !marked[f]) {
				list = append(list, step{Op: ledger.Remove, Key: key{class: set, family: f, name: name}})
			}
		}
	}
	if r.device {
		list = append(list, step{Op: ledger.Remove, Key: key{class: device}})
	}
	return list
}
