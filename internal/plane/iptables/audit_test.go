package iptables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
)

// audit looks at a fake kernel after every COMMIT: what becomes of a connection is
// what became of it before, or what will. Where nothing served it before, it may
// also be refused for a while; where nothing will, it may already meet what is
// behind other frontends of the Service, or be refused.
type audit struct {
	fake   *fakeKernel
	walker *walker
	seen   []tables // after each COMMIT; the first: before any
	host   string   // what held for the whole node before
	skip   bool     // another program has edited the rules, so the state before is no reference
}

// tables are those of all families.
type tables map[route.Family]state

func newAudit(fake *fakeKernel) *audit { return &audit{fake: fake, walker: newWalker()} }

func (a *audit) look() tables {
	p := newPlane(a.fake)
	if err := p.read(context.Background()); err != nil {
		panic(err) // the fake does not fail here
	}
	return p.state
}

// Begin implements planetest.Audit.
func (a *audit) Begin(m *planetest.Model) {
	a.seen = []tables{a.look()}
	if a.host == "" { // after the last sync; or it was begun anew in the middle
		a.host = fmt.Sprint(m.Table().Host)
	}
}

// Note implements planetest.Audit.
func (a *audit) Note() { a.seen = append(a.seen, a.look()) }

// End implements planetest.Audit. When what holds for the whole node changes
// together with Services, or others have been here, a mixture is no mistake.
func (a *audit) End(m *planetest.Model) error {
	skip := a.skip || a.host != fmt.Sprint(m.Table().Host)
	a.skip, a.host = false, ""
	if skip {
		return nil
	}
	return a.judge()
}

func (a *audit) judge() error {
	for _, f := range bothFamilies() {
		states := a.steps(f.ip)
		if len(states) < 3 {
			continue // there was nothing in between
		}
		for _, pk := range a.probes(f.ip, states[0], states[len(states)-1]) {
			if err := a.follow(pk, states); err != nil {
				return err
			}
		}
	}
	return nil
}

// steps are the states that a family's tables had, one after the other.
func (a *audit) steps(ip route.Family) []state {
	var list []state
	for _, s := range a.seen {
		if len(list) == 0 || !list[len(list)-1].equal(s[ip]) {
			list = append(list, s[ip])
		}
	}
	return list
}

func (s state) equal(o state) bool {
	return maps.EqualFunc(s, o, func(a, b iptables.Chains) bool {
		return maps.EqualFunc(a, b, func(c, d iptables.Chain) bool { return slices.Equal(c.Rules, d.Rules) })
	})
}

func (a *audit) follow(pk packet, states []state) error {
	was, had := a.walker.fate(states[0], pk)
	is, has := a.walker.fate(states[len(states)-1], pk)
	if partial(is) {
		return fmt.Errorf("%s comes to %q: some get lost", pk, is)
	}
	if had != "" && has != "" && had != has {
		return nil // for a moment it may be nobody's
	}
	for i, s := range states[1:] {
		now, _ := a.walker.fate(s, pk)
		switch {
		case now == was, now == is:
		case now == "refused" && was == "untouched":
		case is == "untouched" && !partial(now):
		default:
			return fmt.Errorf("after COMMIT %d of %d, %s comes to\n%s\nbefore\n%s\nand in the end\n%s", i+1, len(states)-1, pk, now, was, is)
		}
	}
	return nil
}

// partial reports whether some packets are served and others pass.
func partial(fate string) bool {
	return strings.Contains(fate, ", ") && strings.Contains(fate, "untouched")
}

// probes are connections to all frontends that there were or are, from everywhere.
func (a *audit) probes(ip route.Family, states ...state) []packet {
	type frontend struct {
		to             netip.Addr
		protocol, port string
	}
	var frontends []frontend
	for _, s := range states {
		for _, at := range []key{{table: nat, chain: services}, {table: filter, chain: services}, {table: filter, chain: external}, {table: nat, chain: nodePorts}} {
			for _, text := range s[at.table][at.chain].Rules {
				r := a.walker.rule(text)
				switch {
				case r.port == "":
				case r.to.IsValid() && r.to.IsSingleIP():
					frontends = append(frontends, frontend{r.to.Addr(), r.protocol, r.port})
				default:
					for _, node := range nodeAddrs() {
						frontends = append(frontends, frontend{node, r.protocol, r.port})
					}
				}
			}
		}
	}
	var all []packet
	known := map[frontend]bool{}
	for _, f := range frontends {
		if known[f] || route.FamilyOf(f.to) != ip {
			continue
		}
		known[f] = true
		for _, from := range sources() {
			if route.FamilyOf(from.from) == ip && (from.hook == "OUTPUT" || !f.to.IsLoopback()) {
				from.to, from.protocol, from.port = f.to, f.protocol, f.port
				all = append(all, from)
			}
		}
	}
	return all
}

// sources are a pod, this node, a client in source ranges and one in none, and a
// pod on a second range of addresses.
func sources() []packet {
	var all []packet
	for _, from := range []struct{ hook, iface, addr string }{
		{"PREROUTING", "veth1", "10.180.0.5"},
		{"PREROUTING", "cbr0", "10.180.1.5"},
		{"PREROUTING", "eth0", "10.0.0.9"},
		{"PREROUTING", "eth0", "203.0.113.200"},
		{"OUTPUT", "", "192.168.0.2"},
		{"PREROUTING", "veth1", "fd00:10:180::5"},
		{"PREROUTING", "eth0", "fd00::9"},
		{"PREROUTING", "eth0", "2001:db8:ffff::1"},
		{"OUTPUT", "", "2001:db8::1"},
	} {
		all = append(all, packet{hook: from.hook, iface: from.iface, from: netip.MustParseAddr(from.addr)})
	}
	return all
}
