package iptables

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// Every path exists in the loaded rules: each chain jumps to the next, and the last one
// sends the packet to the backend, or refuses it.
func TestPathsLeadThroughTheRules(t *testing.T) {
	testPaths(t, newPlane, Path, services, external, nodePorts, firewall, clusterPrefix, localPrefix, externalPrefix,
		rangesPrefix, endpointPrefix)
}

func TestPathsOfPortalsLeadThroughTheRules(t *testing.T) {
	for _, node := range []bool{false, true} {
		chains := []string{portalsContainer, nodePortContainer}
		if node {
			chains = []string{portalsHost, nodePortHost}
		}
		path := func(p plane.Connection) []string {
			p.Node = node
			return PortalsPath(p)
		}
		testPaths(t, newPortals, path,
			append(chains, services, external, firewall, clusterPrefix, localPrefix, externalPrefix, rangesPrefix)...)
	}
}

func testPaths(t *testing.T, with func(Kernel) *Plane, pathOf func(plane.Connection) []string, chains ...string) {
	walked := map[string]bool{}
	for detector, opt := range planetest.Detectors() {
		fake := newFake()
		change := planetest.Compile(planetest.EveryShape(), opt)
		planetest.Load(t, with(fake), change)
		rules := map[route.Family]map[table]iptables.Chains{route.IPv4: {}, route.IPv6: {}}
		for ip, kernel := range map[route.Family]iptables.Family{route.IPv4: iptables.IPv4, route.IPv6: iptables.IPv6} {
			for _, tab := range []table{filter, nat} {
				chains, err := fake.Read(t.Context(), iptables.Table{Family: kernel, Name: tab.String()})
				if err != nil {
					t.Fatal(err)
				}
				rules[ip][tab] = chains
			}
		}
		for _, svc := range change.Table.Services {
			for i := range svc.Ports {
				for _, p := range connections(svc, i) {
					path := pathOf(p)
					if err := follow(rules[svc.Ports[i].Family], p, path); err != nil {
						t.Errorf("%s: %+v: %s: %v", detector, p, strings.Join(path, " -> "), err)
					}
					for _, step := range path {
						_, chain, _ := strings.Cut(step, " ")
						walked[chain] = true
					}
				}
			}
		}
	}
	for _, chain := range chains {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(walked)), func(w string) bool {
			return strings.HasPrefix(w, chain)
		}) {
			t.Errorf("no path has the chain %s", chain)
		}
	}
}

// connections returns all kinds of connections to a port: from clients of every kind, without
// a backend and to each backend.
func connections(svc *route.Service, port int) []plane.Connection {
	var all []plane.Connection
	p := &svc.Ports[port]
	for i, f := range p.Frontends {
		at := plane.Connection{Service: svc, Port: port, Frontend: i}
		if f.Restricted && f.Node.Verdict == route.Balance {
			all = append(all, plane.Connection{Service: svc, Port: port, Frontend: i, KeptOut: true, Way: f.Others})
		}
		if f.Kind == route.NodePort && f.Others.Verdict != route.Balance {
			all = append(all, plane.Connection{Service: svc, Port: port, Frontend: i, Unserved: true, Way: f.Others})
		}
		for _, at.Way = range []route.Action{f.Pods, f.Node, f.Others} {
			all = append(all, at)
			if at.Way.Verdict != route.Balance {
				continue
			}
			to := at
			for _, to.Backend = range p.Backends(at.Way.Pool) {
				if p.Weight(to.Backend) > 0 {
					all = append(all, to)
				}
			}
		}
	}
	return all
}

// follow verifies a path in the rules.
func follow(rules map[table]iptables.Chains, p plane.Connection, path []string) error {
	var natChains []string
	for _, step := range path {
		if chain, found := strings.CutPrefix(step, "nat "); found {
			natChains = append(natChains, chain)
		}
	}
	for i, chain := range natChains {
		if i == 0 && chain != services && !strings.HasPrefix(chain, "KUBE-PORTALS-") {
			return fmt.Errorf("begins at %s", chain)
		}
		if i > 0 && !has(rules[nat][natChains[i-1]], "-j "+chain) {
			return fmt.Errorf("%s does not lead to %s", natChains[i-1], chain)
		}
	}
	if len(natChains) < len(path) {
		return refuses(rules[filter], p, strings.TrimPrefix(path[len(path)-1], "filter "))
	}
	last, to := natChains[len(natChains)-1], "-j "+endpointPrefix
	if natChains[0] != services {
		to = "-j DNAT --to-destination" // a listener, which chooses the backend
	} else if p.Backend.IsValid() {
		to = "--to-destination " + p.Backend.String()
	}
	if !slices.ContainsFunc(rules[nat][last].Rules, func(r string) bool { return strings.Contains(r, to) }) {
		return fmt.Errorf("%s has no %q", last, to)
	}
	return nil
}

func has(c iptables.Chain, words string) bool {
	return slices.ContainsFunc(c.Rules, func(r string) bool { return strings.Contains(r+" ", words+" ") })
}

// refuses verifies that a chain is the first in table filter with a rule that refuses or drops packets to a frontend.
func refuses(chains iptables.Chains, p plane.Connection, name string) error {
	port := &p.Service.Ports[p.Port]
	f := &port.Frontends[p.Frontend]
	target := "-j DROP"
	if !p.KeptOut && p.Way.Verdict == route.Reject {
		target = "-j REJECT"
	}
	for _, chain := range []string{firewall, services, external} {
		for _, r := range chains[chain].Rules {
			at := f.Kind == route.NodePort && strings.Contains(r, "--dst-type LOCAL") ||
				f.Addr.IsValid() && strings.Contains(r, "-d "+single(f.Addr)+" ")
			if !at || !strings.Contains(r, fmt.Sprintf("--dport %d ", f.Port)) ||
				!strings.Contains(r, "-p "+strings.ToLower(port.Protocol.String())+" ") {
				continue
			}
			if chain != name || !strings.Contains(r, target) {
				return fmt.Errorf("the first is %s with %s, want %s with %s", chain, r, name, target)
			}
			return nil
		}
	}
	return fmt.Errorf("no chain has a rule for the frontend")
}
