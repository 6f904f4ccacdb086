package iptables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

func listenerAddrs() []netip.Addr { return planetest.Addrs("169.254.73.1", "fd73:6c75:6963:65::1") }

func newPortals(kernel Kernel) *Plane {
	return New(kernel, Options{Families: route.Families(), Mark: testMark, Listeners: listenerAddrs()})
}

// toListeners returns routes with a listener of this node in place of each pool.
func toListeners(change route.Change) route.Change {
	table := &route.Table{Host: change.Table.Host, Services: map[cluster.Name]*route.Service{}}
	next := uint16(32000)
	for _, name := range slices.SortedFunc(maps.Keys(change.Table.Services), cluster.Name.Compare) {
		svc := *change.Table.Services[name]
		svc.Ports = slices.Clone(svc.Ports)
		for i := range svc.Ports {
			p := &svc.Ports[i]
			p.Affinity, p.Weights, p.Here = 0, nil, nil
			for _, pool := range []*[]netip.AddrPort{&p.Cluster, &p.Local} {
				if len(*pool) > 0 {
					*pool = []netip.AddrPort{netip.AddrPortFrom(listenerAddr(p.Family), next)}
					next++
				}
			}
			p.Frontends = slices.Clone(p.Frontends)
			for j := range p.Frontends {
				f := &p.Frontends[j]
				f.Pods.Masquerade, f.Node.Masquerade, f.Others.Masquerade = false, false, false
			}
		}
		table.Services[name] = &svc
	}
	return route.Change{Table: table}
}

// listenerAddr returns the address of listeners in a family.
func listenerAddr(f route.Family) netip.Addr {
	list := listenerAddrs()
	return list[slices.IndexFunc(list, func(a netip.Addr) bool { return route.FamilyOf(a) == f })]
}

// Rules lead to listeners from both entrances, without a choice, an endpoint or a mark.
func TestPortalsArePrintedAsInputOfIptablesRestore(t *testing.T) {
	s := newTestCluster(t, newFake(), nodeCIDR())
	s.service("web", "172.30.0.10", func(svc *cluster.Service) {
		svc.Type, svc.Ports[0].NodePort, svc.ExternalLocal = cluster.LoadBalancer, 30080, true
		svc.LoadBalancerIPs = planetest.Addrs("203.0.113.1")
		svc.Restricted, svc.SourceRanges = true, planetest.Prefixes("198.51.100.0/24")
	})
	s.endpoints("web", "10.180.0.1", "10.180.1.1")
	s.service("cart", "172.30.0.11")
	s.endpoints("cart", "10.180.0.2")
	change, _ := s.compiler.Compile(s.store.Take())
	change = toListeners(change)
	opt := s.plane.opt
	opt.Listeners = listenerAddrs()
	p := New(s.kernel, opt)
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	golden(t, "portals.rules", p.Plan(change).String())
}

// Also routes to any number of backends are programmed, so that the model has every change.
func TestModelOfPortalsOnTheFake(t *testing.T) {
	for seed := range seeds.Of(t, 10) {
		fake := newFake()
		s := newSubject(fake)
		s.audit, s.listeners = newAudit(fake), listenerAddrs()
		if err := s.run(seed); err != nil {
			t.Fatal(err)
		}
	}
}

// After a load a new plane finds nothing to write, with the programs of both variants.
func TestASecondPlaneFindsThePortals(t *testing.T) {
	seeds.Long(t)
	for _, variant := range variants() {
		for name, opt := range planetest.Detectors() {
			t.Run(string(variant)+"/"+name, func(t *testing.T) {
				kernel, _ := realKernel(t, variant)
				change := toListeners(planetest.Compile(planetest.EveryShape(), opt))
				planetest.Load(t, newPortals(kernel), change)
				planetest.Settled(t, newPortals(kernel), change.Table)
			})
		}
	}
}

// A switch between the variants, in both directions, leaves nothing of the other one, and while
// it is written each connection has the destination before it or the one after it.
func TestSwitchesBetweenEndpointsAndPortals(t *testing.T) {
	seeds.Long(t)
	change := planetest.Compile(planetest.EveryShape(), nodeCIDR())
	list := toListeners(change)
	steps := []struct {
		plane  func(Kernel) *Plane
		change route.Change
	}{{newPlane, change}, {newPortals, list}, {newPlane, change}}
	for _, variant := range variants() {
		t.Run(string(variant), func(t *testing.T) {
			kernel, netns := realKernel(t, variant)
			var first string
			for i, s := range steps {
				planetest.Load(t, s.plane(kernel), s.change)
				planetest.Settled(t, s.plane(kernel), s.change.Table)
				left := saved(t, netns, variant)
				if i == 0 {
					first = inOrder(left)
				}
				if has := strings.Contains(left, "KUBE-PORTALS-") || strings.Contains(left, "KUBE-NODEPORT-"); has != (i == 1) {
					t.Errorf("step %d: chains of portals: %v", i, has)
				}
				jump := `PREROUTING -m comment --comment "kubernetes service portals" -j ` + services
				if has := strings.Contains(left, endpointPrefix) || strings.Contains(left, jump); has == (i == 1) {
					t.Errorf("step %d: chains of endpoints: %v", i, has)
				}
				if i == 2 && inOrder(left) != first {
					t.Errorf("after two switches there is\n%s\nwant\n%s", left, first)
				}
			}
		})
	}
	t.Run("packets", func(t *testing.T) {
		fake := newFake()
		planetest.Load(t, newPlane(fake), change)
		for _, s := range steps[1:] {
			checkSwitch(t, fake, s.plane, s.change)
		}
	})
}

// inOrder returns rules without counters and comments of the programs, sorted.
func inOrder(saved string) string {
	var lines []string
	for line := range strings.Lines(saved) {
		if strings.HasPrefix(line, ":KUBE-") || strings.HasPrefix(line, "-A ") {
			line, _, _ = strings.Cut(line, " [")
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// checkSwitch writes a change in small pieces, and follows packets to a fifth of the frontends after each, to other
// ones in each run, as Services are in no order.
func checkSwitch(t *testing.T, fake *fakeKernel, with func(Kernel) *Plane, change route.Change) {
	t.Helper()
	audit := newAudit(fake)
	audit.seen = []tables{audit.read()}
	planetest.Load(t, with(faulty{fake, &planetest.Faults{Room: 1, After: audit.Note}}), change)
	states, changed := map[route.Family][]state{}, map[route.Family][]map[string]bool{}
	for _, f := range bothFamilies() {
		for _, seen := range audit.seen {
			states[f.ip] = append(states[f.ip], seen[f.ip])
		}
		changed[f.ip] = changedChains(states[f.ip])
	}
	packets := packetsOf(change.Table)
	for _, pk := range packets[:seeds.Rounds(t, len(packets))] {
		f := route.FamilyOf(pk.to)
		list := audit.walker.outcomes(states[f], changed[f], pk)
		before, after := list[0], list[len(list)-1]
		for i, got := range list {
			if got != before && got != after {
				t.Fatalf("%s: after %d of %d writes: %s, want %s or %s", pk, i, len(list)-1, got, before, after)
			}
		}
	}
}

// packetsOf returns packets to all frontends with an address, and to NodePorts.
func packetsOf(table *route.Table) []packet {
	var list []packet
	for _, svc := range table.Services {
		for _, p := range svc.Ports {
			for _, f := range p.Frontends {
				pk := packet{
					to: f.Addr, from: netip.MustParseAddr("198.18.0.1"), protocol: p.Protocol.String(), port: fmt.Sprint(f.Port),
				}
				if p.Family == route.IPv6 {
					pk.from = netip.MustParseAddr("fd00::9")
				}
				if !f.Addr.IsValid() {
					pk.to = listenerAddr(p.Family)
				}
				for _, pk.hook = range []string{"PREROUTING", "OUTPUT"} {
					list = append(list, pk)
				}
			}
		}
	}
	return list
}

// What kube-proxy's mode userspace left is removed in both variants, as its rules lead to ports that nobody serves.
func TestKubeProxysPortalsAreReplaced(t *testing.T) {
	const old = `*nat
:KUBE-PORTALS-CONTAINER - [0:0]
:KUBE-PORTALS-HOST - [0:0]
:KUBE-NODEPORT-CONTAINER - [0:0]
:KUBE-NODEPORT-HOST - [0:0]
-A PREROUTING -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" ` +
		`-j KUBE-PORTALS-CONTAINER
-A PREROUTING -m addrtype --dst-type LOCAL ` +
		`-m comment --comment "handle service NodePorts; NOTE: this must be the last rule in the chain" ` +
		`-j KUBE-NODEPORT-CONTAINER
-A OUTPUT -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-HOST
-A OUTPUT -m addrtype --dst-type LOCAL ` +
		`-m comment --comment "handle service NodePorts; NOTE: this must be the last rule in the chain" -j KUBE-NODEPORT-HOST
-A KUBE-PORTALS-CONTAINER -d 172.30.0.1/32 -p tcp -m comment --comment "default/old:" -m tcp --dport 443 ` +
		`-j REDIRECT --to-ports 41111
-A KUBE-PORTALS-HOST -d 172.30.0.1/32 -p tcp -m comment --comment "default/old:" -m tcp --dport 443 ` +
		`-j DNAT --to-destination 192.168.0.2:41111
-A KUBE-NODEPORT-CONTAINER -p tcp -m comment --comment "default/old:" -m tcp --dport 30999 -j REDIRECT --to-ports 41111
COMMIT
*filter
:KUBE-NODEPORT-NON-LOCAL - [0:0]
-A INPUT -m comment --comment "Ensure that non-local NodePort traffic can flow" -j KUBE-NODEPORT-NON-LOCAL
-A KUBE-NODEPORT-NON-LOCAL -p tcp -m comment --comment "default/old:" -m tcp --dport 41111 ` +
		`-m conntrack --ctstate NEW -j ACCEPT
COMMIT
`
	change := planetest.Compile(planetest.EveryShape(), nodeCIDR())
	for _, variant := range variants() {
		for what, s := range map[string]struct {
			plane  func(Kernel) *Plane
			change route.Change
		}{"endpoints": {newPlane, change}, "portals": {newPortals, toListeners(change)}} {
			t.Run(string(variant)+"/"+what, func(t *testing.T) {
				kernel, netns := realKernel(t, variant)
				if err := kernel.Restore(t.Context(), iptables.IPv4, []byte(old)); err != nil {
					t.Fatal(err)
				}
				planetest.Load(t, s.plane(kernel), s.change)
				planetest.Settled(t, s.plane(kernel), s.change.Table)
				for line := range strings.Lines(saved(t, netns, variant)) {
					if strings.Contains(line, "41111") || strings.Contains(line, "handle ") ||
						what == "endpoints" && strings.Contains(line, "KUBE-PORTALS-") {
						t.Errorf("left: %s", line)
					}
				}
				cleanUp(t, netns)
				checkOurs(t, saved(t, netns, variant), false)
			})
		}
	}
}
