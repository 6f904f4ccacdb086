package iptables_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/test/seeds"
)

// loadServices loads a nat table with n Services of three endpoints each, and some foreign rules. It loads them in
// portions, as iptables-nft without privilege cannot load many at once.
func (h host) loadServices(program string, n, portion int) {
	h.t.Helper()
	h.run("*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n"+
		":DOCKER - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SERVICES - [0:0]\n"+
		"-A PREROUTING -j KUBE-SERVICES\n-A PREROUTING -j DOCKER\n-A OUTPUT -j KUBE-SERVICES\n-A OUTPUT -p udp -j ACCEPT\n"+
		"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n", program+"-restore")
	for from := 0; from < n; from += portion {
		h.run(services(from, min(from+portion, n)), program+"-restore", "--noflush")
	}
}

// services returns the input of iptables-restore for some Services.
func services(from, to int) string {
	var chains, rules strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&chains, ":KUBE-SVC-%016d - [0:0]\n", i)
		vip := fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
		fmt.Fprintf(&rules, "-A KUBE-SERVICES -d %s/32 -p tcp -m comment --comment \"ns/svc-%d:http cluster IP\" -m tcp "+
			"--dport 80 -j KUBE-SVC-%016d\n", vip, i, i)
		fmt.Fprintf(&rules, "-A KUBE-SVC-%016d ! -s 10.244.0.0/16 -d %s/32 -p tcp -m comment --comment \"ns/svc-%d:http "+
			"cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ\n", i, vip, i)
		for j := range 3 {
			pod := fmt.Sprintf("10.%d.%d.%d", 128+j, i/250, i%250+1)
			sep := fmt.Sprintf("KUBE-SEP-%d%015d", j, i)
			fmt.Fprintf(&chains, ":%s - [0:0]\n", sep)
			fmt.Fprintf(&rules, "-A KUBE-SVC-%016d -m comment --comment \"ns/svc-%d:http -> %s:8080\" -m statistic --mode "+
				"random --probability 0.33333333349 -j %s\n", i, i, pod, sep)
			fmt.Fprintf(&rules, "-A %s -s %s/32 -m comment --comment \"ns/svc-%d:http\" -j KUBE-MARK-MASQ\n", sep, pod, i)
			fmt.Fprintf(&rules, "-A %s -p tcp -m comment --comment \"ns/svc-%d:http\" -m tcp -j DNAT --to-destination %s:8080\n",
				sep, i, pod)
		}
	}
	return "*nat\n" + chains.String() + rules.String() + "COMMIT\n"
}

// A table that is larger than one netlink message and than a buffer of the usual size.
func TestManyServices(t *testing.T) {
	seeds.Long(t)
	const many = 900
	for program, portion := range map[string]int{"iptables-legacy": many, "iptables-nft": 25} {
		h := newHost(t)
		h.loadServices(program, many, portion)
		before := h.save(program)
		tables := h.outlines()
		chains, rules := 0, 0
		for _, chain := range tables[0].Chains {
			chains++
			rules += len(chain.Rules)
		}
		if wantChains, wantRules := 7+many*4, 5+many*11; chains != wantChains || rules != wantRules {
			t.Errorf("%s: read %d chains, %d rules, want %d and %d", program, chains, rules, wantChains, wantRules)
		}
		if err := h.kernel().Remove(t.Context(), removals(tables)...); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strip(before), h.save(program)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", program, diff)
		}
	}
}

// BenchmarkTenThousandServices reads and removes 110,000 rules in 40,000 chains.
func BenchmarkTenThousandServices(b *testing.B) {
	for _, program := range []string{"iptables-legacy", "iptables-nft"} {
		b.Run(program, func(b *testing.B) {
			h := newHost(b)
			for b.Loop() {
				b.StopTimer()
				h.loadServices(program, 10000, 10000)
				b.StartTimer()
				tables := h.outlines()
				read := b.Elapsed()
				if err := h.kernel().Remove(b.Context(), removals(tables)...); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(read.Seconds(), "read-s")
			}
		})
	}
}
