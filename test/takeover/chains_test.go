//go:build linux

package takeover

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/kubechain"
)

// save lists the rules of a variant, of both families.
func (w *testEnv) save(variant string, options ...string) []string {
	w.Helper()
	var lines []string
	for _, program := range []string{"iptables", "ip6tables"} {
		save := strings.Replace(variant, "iptables", program, 1) + "-save"
		for line := range strings.Lines(w.lab.NodeA.MustRun(append([]string{save}, options...)...)) {
			lines = append(lines, program+" "+strings.TrimSpace(line))
		}
	}
	return lines
}

var chainLine = regexp.MustCompile(`^ip6?tables (?:\[(\d+):\d+\] )?(?::|-A )(\S+)`)

// chains are the lines about chains with kube-proxy's names and jumps to them, sorted, because
// kube-proxy writes Services in any order.
func (w *testEnv) chains(variant string) []string {
	w.Helper()
	var lines []string
	for _, line := range w.save(variant) {
		match := chainLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		if _, target, _ := strings.Cut(line, " -j "); kubechain.Proxy(match[2]) || kubechain.Proxy(target) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// checkNoChains verifies that a variant has no such chains.
func (w *testEnv) checkNoChains(variant string) {
	w.Helper()
	if left := w.chains(variant); len(left) > 0 {
		w.Errorf("%s has chains with kube-proxy's names:\n%s", variant, strings.Join(left, "\n"))
	}
}

var counterPrefix = regexp.MustCompile(`\[\d+:\d+\] `)

// counters are the packet counters of rules that kube-proxy and Sluice write identically, and of jumps to them.
func (w *testEnv) counters(variant string) map[string]int {
	w.Helper()
	counts := map[string]int{}
	for _, line := range w.save(variant, "-c") {
		match := chainLine.FindStringSubmatch(line)
		if match == nil || match[1] == "" || !writtenByBoth(line, match[2]) {
			continue
		}
		n, err := strconv.Atoi(match[1])
		w.must(err)
		counts[counterPrefix.ReplaceAllString(line, "")] = n
	}
	return counts
}

// writtenByBoth reports whether kube-proxy and Sluice write a rule identically. It excludes chains in which kube-proxy
// uses nfacct, the Service of the API server, which has another port each time, and foreign rules.
func writtenByBoth(line, chain string) bool {
	if strings.Contains(line, "default/kubernetes") {
		return false
	}
	_, target, _ := strings.Cut(line, " -j ")
	return (kubechain.Proxy(chain) || kubechain.Proxy(target)) &&
		!slices.Contains([]string{"KUBE-FORWARD", "KUBE-NODEPORTS"}, chain)
}

// checkCounters verifies that no such rule was rewritten, which would have reset its counter.
func (w *testEnv) checkCounters(variant string, before map[string]int) {
	w.Helper()
	after, counted := w.counters(variant), 0
	for rule, n := range before {
		now, ok := after[rule]
		if !ok || now < n {
			w.Errorf("the counter was %d and is %d (rule exists: %t): %s", n, now, ok, rule)
		}
		counted += n
	}
	if counted == 0 || len(after) != len(before) {
		w.Errorf("there were %d rules with %d counted packets, now there are %d rules", len(before), counted, len(after))
	}
}

// kubeProxyChains are chains that kube-proxy creates in mode iptables or ipvs, and Sluice in mode iptables never does.
func kubeProxyChains() []string {
	return []string{
		"KUBE-PROXY-CANARY", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER",
		"KUBE-IPVS-OUT-FILTER",
	}
}

// waitExact waits until the kernel has exactly the rules that Sluice intends, and no chain that only kube-proxy uses.
func (w *testEnv) waitExact(variant string) {
	w.Helper()
	w.eventually(func() error {
		client := admin.Dial(admin.Options{NetNS: w.lab.NodeA.NetNSFD()})
		d, err := admin.All[inspect.Step](client.Ask(w.Context(), "/diff", nil))
		if err != nil {
			return err
		}
		if len(d) > 0 {
			return fmt.Errorf("the kernel differs:\n%s", d)
		}
		for _, line := range w.save(variant) {
			if match := chainLine.FindStringSubmatch(line); match != nil && slices.Contains(kubeProxyChains(), match[2]) {
				return fmt.Errorf("still present: %q", line)
			}
		}
		return nil
	})
}

// checkChains compares the chains with kube-proxy's names with earlier ones.
func (w *testEnv) checkChains(variant string, before []string) {
	w.Helper()
	if diff := cmp.Diff(before, w.chains(variant)); diff != "" {
		w.Errorf("chains and rules of %s differ (-before, +after):\n%s", variant, diff)
	}
}
