package iptables

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// Plans are printed as input of iptables-restore.
func TestPlansArePrintedAsInputOfIptablesRestore(t *testing.T) {
	s := newTestCluster(t, newFake(), nodeCIDR())
	s.service("web", "172.30.0.10", func(svc *cluster.Service) {
		svc.Type, svc.Ports[0].NodePort, svc.ExternalLocal = cluster.LoadBalancer, 30080, true
		svc.LoadBalancerIPs = planetest.Addrs("203.0.113.1")
		svc.Restricted, svc.SourceRanges = true, planetest.Prefixes("198.51.100.0/24")
	})
	s.endpoints("web", "10.180.0.1", "10.180.1.1")
	s.service("cart", "172.30.0.11", func(svc *cluster.Service) { svc.Affinity = 3 * time.Hour })
	s.endpoints("cart", "10.180.0.2", "10.180.1.2")
	golden(t, "start.rules", s.sync())
	s.endpoints("web", "10.180.0.1", "10.180.1.1", "10.180.1.3")
	golden(t, "scale-up.rules", s.sync())
	s.endpoints("cart")
	golden(t, "no-endpoints.rules", s.sync())
	s.remove("web")
	golden(t, "delete.rules", s.sync())
	if text := s.sync(); text != "" {
		t.Errorf("a plan without changes is\n%s", text)
	}
	s.checkSettled()
}

// The number of lines for a change does not depend on the number of Services, and nothing is read.
func TestOneChangeIsAFewLines(t *testing.T) {
	lines := map[string]int{}
	for _, n := range []int{10, 1000} {
		fake := newFake()
		s := newTestCluster(t, fake, nodeCIDR())
		s.addServices(n)
		s.sync()
		s.sync() // the plane knows the state of the kernel
		fake.failRead = func(table iptables.Table) error { return fmt.Errorf("%v is read", table) }
		for _, c := range []struct {
			what string
			do   func()
			most int
		}{
			// The chain of the Service (1 + 1 masquerading + 4) and that of the endpoint (1 + 2).
			{"one more endpoint", func() { s.setService(7, 4) }, 9},
			// The chain of the Service (1 + 1 + 3), and that of the endpoint emptied and deleted.
			{"one endpoint less", func() { s.setService(7, 3) }, 7},
			// A rule added to filter, one deleted from nat, four chains emptied and deleted.
			{"no endpoints", func() { s.setService(7, 0) }, 10},
			{"endpoints again", func() { s.setService(7, 3) }, 16},
			{"one more Service", func() { s.setService(2000, 3) }, 15},
			{"one Service less", func() { s.remove("svc-2000") }, 9},
			{"nothing", func() { s.store.SetServiceCIDRs(nil) }, 0},
		} {
			before := fake.written()
			c.do()
			plan := s.sync()
			got := fake.written() - before
			if want, known := lines[c.what]; got > c.most || known && got != want {
				t.Errorf("%s among %d: %d lines, want at most %d, and the same number for any number of Services\n%s", c.what, n,
					got, c.most, plan)
			}
			lines[c.what] = got
			if own := strings.Count(plan, "svc-7") + strings.Count(plan, "svc-2000"); strings.Count(plan, "shop/") != own {
				t.Errorf("%s: the plan changes other Services as well:\n%s", c.what, plan)
			}
		}
		fake.failRead = nil
		s.checkSettled()
	}
}

// If many rules of a chain are deleted, the chain is written as a whole: each single deletion would search it.
func TestManyDeletionsAreOneRewrite(t *testing.T) {
	for _, gone := range []int{maxDeletions, maxDeletions + 1, 90} {
		t.Run(fmt.Sprint(gone), func(t *testing.T) {
			s := newTestCluster(t, newFake(), nodeCIDR())
			s.addServices(100)
			s.sync()
			for i := range gone {
				s.remove(fmt.Sprintf("svc-%d", i))
			}
			s.setService(99, 0)
			s.service("new", "172.30.200.1")
			plan := s.sync()
			deletions, rewritten := strings.Count(plan, "-D "+services), strings.Contains(plan, ":"+services+" -")
			if many := gone+1 > maxDeletions; many != rewritten || many != (deletions == 0) {
				t.Errorf("%d deletions, written as a whole: %v\n%.2000s", deletions, rewritten, plan)
			}
			s.checkSettled()
			s.service("late", "172.30.200.2")
			s.sync()
			s.checkSettled()
		})
	}
}

// Changes of the Host while there are Services.
func TestHostChanges(t *testing.T) {
	localhost := nodeCIDR()
	localhost.NodePorts.CIDRs = planetest.Prefixes("127.0.0.0/8", "192.168.0.0/16")
	localhost.NodePorts.Loopback = route.LoopbackIncluded
	all := nodeCIDR()
	all.NodePorts.Loopback = route.LoopbackIncluded
	for name, opt := range map[string]route.Options{"addresses": localhost, "all": all} {
		t.Run(name, func(t *testing.T) {
			fake := newFake()
			s := newTestCluster(t, fake, opt)
			kubelet := "-m comment --comment \"kubelet's\" -m mark --mark 0x8000/0x8000 -j DROP"
			fake.edit(t, iptables.IPv4, "*filter\n:KUBE-FIREWALL - [0:0]\n-A KUBE-FIREWALL "+kubelet+"\nCOMMIT\n")
			s.refresh()
			for i := range 5 {
				s.service(fmt.Sprint("svc-", i), fmt.Sprint("172.30.0.", i+1), func(svc *cluster.Service) {
					svc.Type, svc.Ports[0].NodePort, svc.ExternalLocal = cluster.NodePort, 30000+uint16(i), i%2 == 0
				})
				s.endpoints(fmt.Sprint("svc-", i), "10.180.0.1", "10.180.1.1")
			}
			s.sync()
			for step, change := range []func(){
				func() { s.store.SetNode(planetest.NewNode("10.180.0.0/24", "10.180.1.0/24")) },
				func() { s.store.SetNode(planetest.NewNode("10.180.4.0/24", "10.180.7.0/24")) },
				func() { s.store.SetLocalAddresses(planetest.Addrs("127.0.0.1", "192.168.0.2", "192.168.0.3")) },
				func() { s.store.SetNode(planetest.NewNode("10.180.0.0/24")) },
				func() { s.store.SetLocalAddresses(planetest.Addrs("192.168.0.3")) },
				func() { s.store.SetNode(planetest.NewNode("0.0.0.0/0")) },
				func() { s.store.SetLocalAddresses(planetest.Addrs("127.0.0.1", "192.168.0.2")) },
				func() { s.store.SetNode(nil) },
				func() { s.store.SetNode(planetest.NewNode("10.180.0.0/24")); s.setService(1, 2) },
			} {
				change()
				s.sync()
				s.checkSettled()
				if !strings.Contains(fake.String(), "kubelet") || strings.Count(fake.String(), "block incoming localnet") > 1 {
					t.Fatalf("step %d: unexpected rules in %s:\n%s", step, localnet, fake)
				}
			}
		})
	}
}

// A comparison that adds source ranges to a frontend deletes its old rule at once: behind
// the new one it would admit all clients, and lead them to new backends.
func TestAComparisonAddsSourceRangesAtOnce(t *testing.T) {
	fake := newFake()
	s := newTestCluster(t, fake, nodeCIDR())
	web := func(endpoint string, tune func(*cluster.Service)) {
		s.service("web", "172.30.0.10", func(svc *cluster.Service) {
			svc.Type, svc.LoadBalancerIPs = cluster.LoadBalancer, planetest.Addrs("203.0.113.1")
			tune(svc)
		})
		s.endpoints("web", endpoint)
	}
	web("10.180.0.1", func(*cluster.Service) {})
	s.sync()

	audit := newAudit(fake)
	audit.seen = []tables{audit.read()}
	s.plane = New(faulty{fake, &planetest.Faults{Room: 1, After: audit.Note}}, s.plane.opt)
	web("10.180.0.2", func(svc *cluster.Service) {
		svc.Restricted, svc.SourceRanges = true, planetest.Prefixes("198.51.100.0/24")
	})
	s.refresh()
	s.sync()
	if err := audit.check(); err != nil {
		t.Error(err)
	}
	s.checkSettled()
}
