package iptables

import (
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// edits returns edits of IPv4 tables by other programs, and whether each interferes with our rules.
func edits() map[string]struct {
	table, input string
	harmful      bool
} {
	const portals = `-m comment --comment "kubernetes service portals" -j KUBE-SERVICES`
	return map[string]struct {
		table, input string
		harmful      bool
	}{
		"a jump is removed":   {"nat", "-D PREROUTING " + portals, true},
		"a jump exists twice": {"nat", "-A PREROUTING " + portals, true},
		"jumps are reordered": {
			"filter",
			"-D INPUT 3\n" +
				"-I INPUT 1 -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" " +
				"-j KUBE-EXTERNAL-SERVICES",
			true,
		},
		"an ACCEPT for all comes first": {"filter", "-I FORWARD -j ACCEPT", true},
		"a DROP for few comes first":    {"filter", "-I FORWARD -s 192.0.2.2/32 -j DROP", false},
		"a chain is flushed":            {"nat", "-F KUBE-MARK-MASQ", true},
		"a shared chain is flushed":     {"nat", "-F KUBE-SERVICES", true},
		"a chain is deleted": {
			"nat",
			"-D POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n-F KUBE-POSTROUTING\n" +
				"-X KUBE-POSTROUTING",
			true,
		},
		"a rule in the middle":        {"nat", "-I KUBE-SERVICES 3 -s 192.0.2.3/32 -j RETURN", true},
		"a rule in one of our chains": {"nat", "-A KUBE-MARK-MASQ -j RETURN", true},
		"a rule behind the last":      {"nat", "-A KUBE-SERVICES -s 192.0.2.3/32 -j RETURN", true},
		"a rule comes twice": {
			"filter", "-A KUBE-NODEPORTS -p tcp -m tcp --dport 1 -j ACCEPT\n-A KUBE-NODEPORTS -p tcp -m tcp --dport 1 -j ACCEPT",
			true,
		},
		"docker comes first": {
			"nat", ":DOCKER - [0:0]\n-A DOCKER -i docker0 -j RETURN\n-I PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
			false,
		},
		"calico comes first": {
			"filter",
			":cali-FORWARD - [0:0]\n-I FORWARD -m comment --comment \"cali:x\" -j cali-FORWARD\n" +
				"-A FORWARD -m comment --comment \"cali:y\" -j ACCEPT",
			false,
		},
		"a plugin marks packets": {
			"nat",
			":CNI-A - [0:0]\n-A CNI-A -s 192.0.2.4/32 -j KUBE-MARK-MASQ\n-A POSTROUTING -j CNI-A\n" +
				"-A OUTPUT -s 192.0.2.4/32 -j KUBE-MARK-MASQ",
			false,
		},
		"a rule with an empty match":    {"nat", "-A KUBE-SERVICES -p tcp -m tcp -j RETURN", true},
		"kube-proxy's canaries":         {"nat", ":KUBE-PROXY-CANARY - [0:0]", true},
		"a foreign chain jumps to ours": {"nat", ":mine - [0:0]\n-A mine -d 192.0.2.5/32 -g KUBE-SERVICES", false},
	}
}

// Edits of our chains, and of jumps to them, are repaired. All other rules of other programs are kept.
func TestForeignEditsAreRepaired(t *testing.T) {
	for _, variant := range variants() {
		t.Run(string(variant), func(t *testing.T) {
			kernel, _ := realKernel(t, variant)
			testForeignEdits(t, kernel)
		})
	}
	t.Run("fake", func(t *testing.T) { testForeignEdits(t, newFake()) })
}

func testForeignEdits(t *testing.T, kernel Kernel) {
	known := "*filter\n-A FORWARD -s 192.0.2.1/32 -j DROP\nCOMMIT\n"
	if err := kernel.Restore(t.Context(), iptables.IPv4, []byte(known)); err != nil {
		t.Fatal(err)
	}
	s := newTestCluster(t, kernel, nodeCIDR())
	s.addServices(3)
	s.sync()
	watch := newSubject(kernel)
	for what, edit := range edits() {
		input := "*" + edit.table + "\n" + edit.input + "\nCOMMIT\n"
		if err := kernel.Restore(t.Context(), iptables.IPv4, []byte(input)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		before, err := watch.others()
		if err != nil {
			t.Fatal(err)
		}
		s.refresh()
		if plan := s.sync(); edit.harmful != (plan != "") {
			t.Errorf("%s: harmful: %v, but the plan is\n%s", what, edit.harmful, plan)
		}
		s.checkSettled()
		if now, err := watch.others(); err != nil || now != before {
			t.Errorf("%s: foreign rules before\n%s\nnow (%v)\n%s", what, before, err, now)
		}
		s.refresh()
		if plan := s.sync(); plan != "" {
			t.Errorf("%s: a second plan has steps:\n%s", what, plan)
		}
	}
}

// A chain of a deleted Service to which others lead is emptied after the rules of the
// Service that led there are deleted.
func TestAnAbandonedChainIsEmptiedLast(t *testing.T) {
	fake := newFake()
	s := newTestCluster(t, fake, nodeCIDR())
	s.setService(0, 3)
	s.sync()
	others := "*nat\n:mine - [0:0]\n"
	for chain := range s.nat() {
		if owned(chain) {
			others += "-A mine -d 192.0.2.5/32 -j " + chain + "\n"
		}
	}
	fake.edit(t, iptables.IPv4, others+"COMMIT\n")
	audit := newAudit(fake)
	audit.seen = []tables{audit.read()}
	s.plane = New(faulty{fake, &planetest.Faults{Room: 1, After: audit.Note}}, s.plane.opt)
	s.remove("svc-0")
	s.refresh()
	s.sync()
	if err := audit.check(); err != nil {
		t.Error(err)
	}
	s.checkSettled()
}

// The rule that must be last is moved to the end again.
func TestTheRuleForNodePortsStaysLast(t *testing.T) {
	fake := newFake()
	s := newTestCluster(t, fake, nodeCIDR())
	s.addServices(3)
	s.sync()
	last := func() string {
		rules := s.nat()[services].Rules
		return rules[len(rules)-1]
	}
	tail := last()
	if !strings.Contains(tail, "NOTE: this must be the last rule") {
		t.Fatalf("the last rule is %s", tail)
	}
	fake.edit(t, iptables.IPv4, "*nat\n-D KUBE-SERVICES "+tail+"\n-I KUBE-SERVICES "+tail+"\nCOMMIT\n")
	s.refresh()
	s.setService(9, 2)
	s.sync()
	s.setService(10, 2)
	s.sync()
	if got := last(); got != tail {
		t.Errorf("the last rule is\n%s\nwant\n%s", got, tail)
	}
	s.checkSettled()
}

// --cleanup deletes all chains of Sluice and kube-proxy, and nothing else.
func TestCleanup(t *testing.T) {
	foreign := map[string]string{
		"no foreign rules": "",
		"a plugin that marks": "*nat\n:CNI-A - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n-A CNI-A -s 192.0.2.4/32 -j KUBE-MARK-MASQ\n" +
			"-A POSTROUTING -s 192.0.2.4/32 -j CNI-A\nCOMMIT\n*filter\n:KUBE-FIREWALL - [0:0]\n:DOCKER-USER - [0:0]\n" +
			"-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\n-A FORWARD -j DOCKER-USER\n" +
			"-A INPUT -s 192.0.2.1/32 -j DROP\nCOMMIT\n",
	}
	for what, others := range foreign {
		for _, variant := range variants() {
			t.Run(what+"/"+string(variant), func(t *testing.T) {
				kernel, netns := realKernel(t, variant)
				if err := kernel.Restore(t.Context(), iptables.IPv4, []byte(others)); err != nil {
					t.Fatal(err)
				}
				change := planetest.Compile(planetest.EveryShape(), route.Options{})
				load(t, kernel, change)
				stray := "*nat\n:KUBE-XLB-AAAAAAAAAAAAAAAA - [0:0]\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n"
				if err := kernel.Restore(t.Context(), iptables.IPv4, []byte(stray)); err != nil {
					t.Fatal(err)
				}
				cleanUp(t, netns)
				left := saved(t, netns, variant)
				for _, want := range wantLeft(others) {
					if !strings.Contains(left, want) {
						t.Errorf("%q is gone:\n%s", want, left)
					}
				}
				checkOurs(t, left, others != "")
				load(t, kernel, change)
				checkSettled(t, kernel, change.Table)
			})
		}
	}
}

// cleanUp does what --cleanup does.
func cleanUp(t *testing.T, netns int) {
	t.Helper()
	_, err := takeover.Cleanup(t.Context(), takeover.Options{
		NetNS: netns, Log: slog.New(slog.DiscardHandler), IgnoreKubeProxy: true,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wantLeft returns the rules that input adds.
func wantLeft(input string) []string {
	var list []string
	for line := range strings.Lines(input) {
		if strings.HasPrefix(line, "-A ") {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

// checkOurs verifies that none of our rules is left, except the ones that mark and masquerade packets for a plugin.
func checkOurs(t *testing.T, left string, marked bool) {
	t.Helper()
	for line := range strings.Lines(left) {
		spared := strings.Contains(line, localnet) || strings.Contains(line, "block incoming localnet") ||
			marked && (strings.Contains(line, markMasq) || strings.Contains(line, postrouting))
		if strings.Contains(line, "KUBE-") && !spared {
			t.Errorf("left: %s", line)
		}
	}
	if marked && !strings.Contains(left, "--random-fully") {
		t.Errorf("marked packets are not masqueraded any more:\n%s", left)
	}
}

// saved returns the output of iptables-save of both families.
func saved(t *testing.T, netns int, variant iptables.Variant) string {
	t.Helper()
	var all strings.Builder
	kerneltest.Do(t, netns, func() error {
		for _, family := range []string{"iptables-", "ip6tables-"} {
			out, err := exec.Command("/usr/sbin/" + family + string(variant) + "-save").Output()
			if err != nil {
				return err
			}
			all.Write(out)
		}
		return nil
	})
	return all.String()
}

// The Service of the API server comes first in a first load.
func TestTheAPIServersServiceComesFirst(t *testing.T) {
	s := newTestCluster(t, newFake(), nodeCIDR())
	s.addServices(3)
	s.store.SetService(&cluster.Service{
		Name: cluster.Name{Namespace: "default", Name: "kubernetes"}, ClusterIPs: planetest.Addrs("172.31.0.1"),
		Ports: []cluster.ServicePort{{Name: "https", Protocol: cluster.TCP, Port: 443}},
	})
	plan := s.sync()
	if api := strings.Index(plan, "default/kubernetes:https"); api < 0 || api > strings.Index(plan, "shop/") {
		t.Errorf("other Services come before it:\n%.2000s", plan)
	}
}
