package iptables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// audit verifies the rules of a fake kernel after every COMMIT of a sync. The outcome for a
// connection must be the one before the sync or the one after it. A connection that nothing
// served before may also be refused for a while. A connection that nothing serves
// afterwards may already have the outcome of other frontends of the Service, or be refused.
type audit struct {
	fake   *fakeKernel
	walker *walker
	seen   []tables // before the sync, and after each COMMIT
	host   string   // the Host before the sync
	skip   bool     // another program has edited the rules, so the state before is no reference
}

// tables are the tables of all families.
type tables map[route.Family]state

func newAudit(fake *fakeKernel) *audit { return &audit{fake: fake, walker: newWalker()} }

func (a *audit) read() tables {
	p := newPlane(a.fake)
	if err := p.Refresh(context.Background()); err != nil {
		panic(err) // the fake does not fail here
	}
	return p.state
}

// Begin implements planetest.Audit.
func (a *audit) Begin(m *planetest.Model) {
	a.seen = []tables{a.read()}
	if a.host == "" { // not set by an earlier Begin of this sync
		a.host = fmt.Sprint(m.Table().Host)
	}
}

// Note implements planetest.Audit.
func (a *audit) Note() { a.seen = append(a.seen, a.read()) }

// End implements planetest.Audit. It checks nothing if the Host changes together with
// Services, or if another program has made edits.
func (a *audit) End(m *planetest.Model) error {
	skip := a.skip || a.host != fmt.Sprint(m.Table().Host)
	a.skip, a.host = false, ""
	if skip {
		return nil
	}
	return a.check()
}

func (a *audit) check() error {
	for _, f := range bothFamilies() {
		states := a.steps(f.ip)
		if len(states) < 3 {
			continue // no intermediate state
		}
		changed := changedChains(states)
		for _, pk := range a.probes(f.ip, states[0], states[len(states)-1]) {
			if err := a.follow(pk, states, changed); err != nil {
				return err
			}
		}
	}
	return nil
}

// steps returns the states that the tables of a family had, in order.
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

func (a *audit) follow(pk packet, states []state, changed []map[string]bool) error {
	before, ownerBefore := a.walker.outcome(states[0], pk)
	after, ownerAfter := a.walker.outcome(states[len(states)-1], pk)
	if partial(after) {
		return fmt.Errorf("the outcome for %s is %q: not all are served", pk, after)
	}
	if ownerBefore != "" && ownerAfter != "" && ownerBefore != ownerAfter {
		return nil // for a moment no Service may have the frontend
	}
	for i, now := range a.walker.outcomes(states, changed, pk) {
		switch {
		case now == before, now == after:
		case now == "refused" && before == "untouched":
		case after == "untouched" && !partial(now):
		default:
			return fmt.Errorf("after COMMIT %d of %d, the outcome for %s is\n%s\nbefore\n%s\nat the end\n%s", i, len(states)-1,
				pk, now, before, after)
		}
	}
	return nil
}

// partial reports whether some packets reach a backend and others remain untranslated.
func partial(outcome string) bool {
	return strings.Contains(outcome, ", ") && strings.Contains(outcome, "untouched")
}

// probes returns connections from all sources to every frontend in one of the states.
func (a *audit) probes(ip route.Family, states ...state) []packet {
	type frontend struct {
		to             netip.Addr
		protocol, port string
	}
	var frontends []frontend
	for _, s := range states {
		for _, at := range []key{
			{table: nat, chain: services},
			{table: filter, chain: services},
			{table: filter, chain: external},
			{table: nat, chain: nodePorts},
		} {
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

// sources returns packets from pods in two ranges, from this node, and from clients inside
// and outside of the source ranges.
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
