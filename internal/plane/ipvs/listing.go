package ipvs

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
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
	ports  map[uint16]bool // NodePorts
	drains drains          // that Rest found
	late   []step          // rules that are written after the addresses
}

func newListing(s state, opt Options) *listing {
	l := &listing{state: s, opt: opt, ports: map[uint16]bool{}, drains: drains{}}
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
			had.kind, exists = s.Definition, true
		}
	case member:
		if s := l.sets[setName(k.family, k.name)]; s != nil {
			had.mark, exists = s.Members[k.member]
			delete(s.Members, k.member)
		}
	case rules:
		found := l.chains[k.family][k.name]
		had.rules = existing(found, iptables.Parse(want.Value.rules)[k.name]).Ruleset(k.name, found)
		exists = had.rules != ""
		if k.name == nat && balances(had.rules) { // they serve until the addresses lead to virtual servers
			k.late = true
			l.late = append(l.late, step{Op: ledger.Change, Key: k, Old: had, New: want.Value})
			return want.Value, ledger.Equal
		}
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
	return want.Match(had, exists)
}

// Rest implements ledger.Listing. It leaves out what drains, and virtual servers of other programs.
func (l *listing) Rest() []step {
	list := l.late
	remove := func(k key, old value) { list = append(list, step{Op: ledger.Remove, Key: k, Old: old}) }
	for s, f := range l.servers {
		if !f.taken && !l.owns(s) {
			continue
		}
		for at, weight := range f.dests {
			if f.taken && !isUDP(s) && slices.Contains(f.drains, at) {
				l.drains.add(s, at)
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
			if s := l.sets[setName(f, name)]; s != nil && s.Definition == kind {
				for m, mark := range s.Members {
					remove(key{class: member, family: f, name: name, member: m}, value{mark: mark})
				}
			}
		}
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
