//go:build linux

package takeover

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/internal/kubechain"
)

// saved is what a variant has in both families.
func (w *world) saved(variant string, options ...string) []string {
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

var ofChain = regexp.MustCompile(`^ip6?tables (?:\[(\d+):\d+\] )?(?::|-A )(\S+)`)

// chains are the lines about chains with kube-proxy's names, and about rules that
// lead there, sorted: kube-proxy writes Services in any order.
func (w *world) chains(variant string) []string {
	w.Helper()
	var lines []string
	for _, line := range w.saved(variant) {
		match := ofChain.FindStringSubmatch(line)
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

// chainless makes sure that there are none in a variant.
func (w *world) chainless(variant string) {
	w.Helper()
	if left := w.chains(variant); len(left) > 0 {
		w.Errorf("%s has chains with kube-proxy's names:\n%s", variant, strings.Join(left, "\n"))
	}
}

var countOf = regexp.MustCompile(`\[\d+:\d+\] `)

// counters are how many packets each rule has counted that kube-proxy and Sluice
// make alike, and those that lead there.
func (w *world) counters(variant string) map[string]int {
	w.Helper()
	counts := map[string]int{}
	for _, line := range w.saved(variant, "-c") {
		match := ofChain.FindStringSubmatch(line)
		if match == nil || match[1] == "" || !alike(line, match[2]) {
			continue
		}
		n, err := strconv.Atoi(match[1])
		w.must(err)
		counts[countOf.ReplaceAllString(line, "")] = n
	}
	return counts
}

// alike tells rules of chains that both make from those in which kube-proxy
// counts packets by nfacct, from those of the API server, which has another port
// each time, and from those of others.
func alike(line, chain string) bool {
	if strings.Contains(line, "default/kubernetes") {
		return false
	}
	_, target, _ := strings.Cut(line, " -j ")
	return (kubechain.Proxy(chain) || kubechain.Proxy(target)) && !slices.Contains([]string{"KUBE-FORWARD", "KUBE-NODEPORTS"}, chain)
}

// untouched makes sure that no such rule was written since: they are the same,
// and went on counting.
func (w *world) untouched(variant string, before map[string]int) {
	w.Helper()
	after, counted := w.counters(variant), 0
	for rule, n := range before {
		now, ok := after[rule]
		if !ok || now < n {
			w.Errorf("it had counted %d packets, and has %d (still there: %t): %s", n, now, ok, rule)
		}
		counted += n
	}
	if counted == 0 || len(after) != len(before) {
		w.Errorf("there were %d rules, which had counted %d packets, and are %d now", len(before), counted, len(after))
	}
}

// exact waits until the kernel holds what Sluice wants, and all that kube-proxy
// alone has is gone.
func (w *world) exact(variant string) {
	w.Helper()
	w.eventually(func() error {
		var d inspect.Difference
		if err := control.Dial(control.Options{NetNS: w.lab.NodeA.NetNSFD()}).Get(w.Context(), "/diff", nil, &d); err != nil {
			return err
		}
		if d.Steps > 0 {
			return fmt.Errorf("the kernel differs:\n%s", d.Text)
		}
		for _, line := range w.saved(variant) {
			if match := ofChain.FindStringSubmatch(line); match != nil && kubechain.KubeProxyAlone(match[2]) {
				return fmt.Errorf("there is still %q", line)
			}
		}
		return nil
	})
}

// equal compares what is there of kube-proxy's names in a variant with what was.
func (w *world) equal(variant string, before []string) {
	w.Helper()
	if diff := cmp.Diff(before, w.chains(variant)); diff != "" {
		w.Errorf("chains and rules of %s are others (-before, +now):\n%s", variant, diff)
	}
}
