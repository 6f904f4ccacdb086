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
// behind other fronts of the Service, or be refused; which kind of refusal it is may change early.
type audit struct {
	fake   *iptables.Fake
	walker *walker
	seen   []tables // after each COMMIT; the first: before any
	host   string   // what held for the whole node before
	skip   bool // others meddled, so that what was before is no measure
}

// tables are those of all families.
type tables map[route.Family]state

func newAudit(fake *iptables.Fake) *audit { return &audit{fake: fake, walker: newWalker()} }

func (a *audit) look() tables {
	all := tables{}
	for _, f := range rows(planetest.Families()) {
		s, err := newPlane(a.fake).read(context.Background(), f)
		if err != nil {
			panic(err) // a Fake that is not told to fails no read
		}
		all[f.ip] = s
	}
	return all
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
	for _, f := range rows(planetest.Families()) {
		before, after := a.seen[0][f.ip], a.seen[len(a.seen)-1][f.ip]
		for _, pk := range a.probes(f.ip, before, after) {
			if err := a.follow(f, pk, before, after); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *audit) follow(f family, pk packet, before, after state) error {
	was, had := a.walker.fate(before, pk)
	is, has := a.walker.fate(after, pk)
	if partial(is) {
		return fmt.Errorf("%s comes to %q: some get lost", pk, is)
	}
	if had != "" && has != "" && had != has {
		return nil // for a moment it may be nobody's
	}
	for i, s := range a.seen[1:] {
		now, _ := a.walker.fate(s[f.ip], pk)
		if now == was || now == is || now == "refused" && was == "untouched" {
			continue
		}
		if is == "untouched" && !partial(now) {
			continue // of a front that goes
		}
		for k, s := range a.seen {
			for _, t := range everyTable() {
				for _, n := range sortedNames(s[f.ip][t]) {
					for _, r := range s[f.ip][t][n].Rules {
						if strings.Contains(r, pk.to.String()) && strings.Contains(r, "dport "+pk.port) {
							fmt.Println("DEBUG", k, t, n, r)
						}
					}
				}
			}
		}
		return fmt.Errorf("after COMMIT %d of %d, %s comes to\n%s\nbefore\n%s\nand in the end\n%s", i+1, len(a.seen)-1, pk, now, was, is)
	}
	return nil
}

// partial reports whether some packets are served and others pass.
func partial(fate string) bool {
	return strings.Contains(fate, ", ") && strings.Contains(fate, "untouched")
}

// probes are connections to all fronts that there were or are, from everywhere.
func (a *audit) probes(ip route.Family, states ...state) []packet {
	type front struct {
		to             netip.Addr
		protocol, port string
	}
	fronts := map[front]bool{}
	for _, s := range states {
		for _, at := range []ref{{nat, services}, {filter, services}, {filter, external}, {nat, nodePorts}} {
			for _, text := range s[at.table][at.name].Rules {
				r := a.walker.rule(text)
				if r.port == "" {
					continue
				}
				if r.to.IsValid() && r.to.IsSingleIP() {
					fronts[front{r.to.Addr(), r.protocol, r.port}] = true
					continue
				}
				for _, node := range append(nodeAddrs(), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")) {
					if route.FamilyOf(node) == ip {
						fronts[front{node, r.protocol, r.port}] = true
					}
				}
			}
		}
	}
	var all []packet
	for f := range maps.Keys(fronts) {
		for _, from := range sources() {
			if route.FamilyOf(from.from) == ip && (from.hook == "OUTPUT" || !f.to.IsLoopback()) {
				from.to, from.protocol, from.port = f.to, f.protocol, f.port
				all = append(all, from)
			}
		}
	}
	slices.SortFunc(all, func(a, b packet) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
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
