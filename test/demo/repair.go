//go:build linux

package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// iptables returns the IPv4 program of the variant that Sluice uses.
func (t *tour) iptables() string {
	for _, line := range t.sluice.Log.Lines("Rules are written by") {
		if name := regexp.MustCompile(`iptables-\w+`).FindString(line.Text); name != "" {
			if _, err := exec.LookPath(name); err == nil {
				return name
			}
		}
	}
	return "iptables" // there is one variant only
}

// chains shows the rules of mode iptables and their repair.
func (t *tour) chains() error {
	if err := t.thereAndBack("iptables", moves{removedOurs, removedRules}, t.showChains); err != nil {
		return err
	}
	t.note("KUBE-FIREWALL stays: it is kubelet's too.")
	return t.noChains()
}

func (t *tour) showChains() error {
	tables, err := t.tables()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(tables, func(name string) bool { return strings.HasSuffix(name, " sluice") }) {
		t.fail("Tables of the mode nftables are still there: %s.", strings.Join(tables, ", "))
	}
	program := t.iptables()
	rules, err := t.natRules(program)
	if err != nil {
		return err
	}
	t.showChain(program, rules)
	if err := t.flushNat(program, rules); err != nil {
		return err
	}
	t.ask("status", "Mode", "Rules", "Repaired")
	return nil
}

// natRules returns the rules of the table nat in IPv4, sorted: chains have no fixed order.
func (t *tour) natRules(program string) ([]string, error) {
	out, err := t.NodeA.Run("", program+"-save", "-t", "nat")
	return linesWith(out, "-A "), err
}

// linesWith returns the lines that contain a word, sorted.
func linesWith(text, word string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	slices.Sort(found)
	return found
}

// showChain prints the rules of a Service in the form known from kube-proxy.
func (t *tour) showChain(program string, rules []string) {
	vip := t.ways()[0].to.Addr().String()
	chain := clusterChain(rules, vip)
	if chain == "" {
		t.fail("There is no chain of kube-proxy's for %s:\n%s", vip, strings.Join(rules, "\n"))
		return
	}
	t.command("%s-save -t nat | grep %s", program, chain)
	shown := regexp.MustCompile(`^-A KUBE-SERVICES .*` + chain + `|^-A ` + chain + ` -m comment`)
	for _, rule := range rules {
		if !shown.MatchString(rule) {
			continue
		}
		for i, row := range fold(rule) {
			t.note("%s%s", strings.Repeat("    ", min(i, 1)), row)
		}
	}
	fmt.Fprintln(t)
}

// clusterChain returns the chain of a ClusterIP; "" if there is none.
func clusterChain(rules []string, vip string) string {
	to := regexp.MustCompile(`^-A KUBE-SERVICES -d ` + regexp.QuoteMeta(vip) + `/32 .* -j (KUBE-SVC-\S+)$`)
	for _, rule := range rules {
		if m := to.FindStringSubmatch(rule); m != nil {
			return m[1]
		}
	}
	return ""
}

// fold breaks a rule before options into rows of the line width.
func fold(rule string) []string {
	options := strings.Split(rule, " -")
	rows := options[:1]
	for _, option := range options[1:] {
		last := &rows[len(rows)-1]
		if len(*last)+len(" -")+len(option) > width {
			rows = append(rows, "-"+option)
			continue
		}
		*last += " -" + option
	}
	return rows
}

// gap is a time without rules: from before they were deleted until new connections worked again.
type gap struct{ began, deleted, ended time.Time }

// gap deletes rules and waits until new connections work in both IP families.
func (t *tour) gap(remove func() error) (gap, error) {
	g := gap{began: time.Now()}
	if err := remove(); err != nil {
		return g, err
	}
	g.deleted = time.Now()
	for _, w := range withTimeout(t.webWays(), 10*time.Millisecond) {
		if r := until(w, answered); r.Outcome != lab.Answered {
			return g, fmt.Errorf("%s after the rules were deleted: %s", w, r)
		}
	}
	g.ended = time.Now()
	return g, nil
}

// flushNat flushes the table nat once and reports its repair. The same rules must come back.
func (t *tour) flushNat(program string, before []string) error {
	flow := startTraffic(withTimeout(t.webWays(), 800*time.Millisecond))
	defer flow()
	shortPause()
	t.command("%s -t nat -F", program)
	g, err := t.gap(func() error {
		_, err := t.NodeA.Run("", program, "-t", "nat", "-F")
		return err
	})
	if err != nil {
		return err
	}
	shortPause()
	made := flow()
	after, err := t.natRules(program)
	if err != nil {
		return err
	}
	if !slices.Equal(before, after) {
		t.fail("The table nat had %d rules before, and has %d others now.", len(before), len(after))
	}
	repaired, err := t.repairs()
	if err != nil {
		return err
	}
	if repaired != 1 {
		t.fail("The metric of repairs is %d, want 1.", repaired)
	}
	took := millis(g.ended.Sub(g.began))
	t.pass("%s after the command began, new connections worked again, with the same %d rules as before.", took, len(after))
	if strings.HasSuffix(program, "-legacy") {
		t.note("The kernel has no notifications for rules of iptables-legacy: Sluice polls them every 3 s.")
	}
	t.gaps(made, []gap{g}, 0)
	t.addFact("Flush", "%s -t nat -F: repaired after %s", program, took)
	return nil
}

// gaps reports lost requests. At most allowed may be lost while the rules were present.
func (t *tour) gaps(made requests, gaps []gap, allowed int) {
	lost, within := made.lost(), 0
	for _, g := range gaps {
		within += len(lost.during(g))
	}
	later := max(0, len(lost)-within)
	if later > allowed {
		t.fail("%d requests were lost while the rules were there, such as: %s", later, lost[0].result)
	}
	t.pass("%s requests, lost %d: %d under way while there were no rules, %d later.",
		count(len(made)), len(lost), within, later)
}

// noChains verifies that no line of iptables has a chain name of kube-proxy, except KUBE-FIREWALL.
func (t *tour) noChains() error {
	for _, program := range []string{
		"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save",
	} {
		if _, err := exec.LookPath(program); err != nil {
			continue
		}
		out, err := t.NodeA.Run("", program)
		if err != nil {
			return err
		}
		for _, line := range linesWith(out, "KUBE-") {
			if !strings.Contains(line, "KUBE-FIREWALL") {
				t.fail("%s still has %s", program, line)
			}
		}
	}
	return nil
}

// flushes is how often repair deletes everything. After ten times in a row Sluice slows down,
// because two programs could overwrite each other forever.
const flushes = 8

// repair deletes all rules of the node repeatedly.
func (t *tour) repair() error {
	const period = 500 * time.Millisecond // with rules, between two flushes
	t.head("Repair: another program deletes all rules of the node, %d times, under traffic", flushes)
	before, err := t.repairs()
	if err != nil {
		return err
	}
	var quiet []*lab.Flow
	for _, w := range t.ways() {
		flow, r := w.from.Open(lab.Probe{Protocol: lab.TCP, To: w.to})
		if flow == nil {
			return fmt.Errorf("%s: %s", w, r)
		}
		quiet = append(quiet, flow)
	}
	flow := startTraffic(withTimeout(t.webWays(), 300*time.Millisecond))
	defer flow()
	var gaps []gap
	var times []time.Duration
	for range flushes {
		time.Sleep(period)
		g, err := t.gap(t.flushRuleset)
		if err != nil {
			return err
		}
		gaps, times = append(gaps, g), append(times, g.ended.Sub(g.deleted))
	}
	time.Sleep(period)
	made := flow()
	median, most := millis(harness.Quantile(times, 0.5)), millis(slices.Max(times))
	t.pass("New connections worked again after %s (median), %s at most, in both IP families.", median, most)
	t.gaps(made, gaps, flushes)
	t.addFact("Repair", "all rules deleted %d times: back after %s, %s at most", flushes, median, most)
	broken := 0
	for _, f := range quiet {
		if f.Ask([]byte("still there?")).Outcome != lab.Answered {
			broken++
		}
		f.Close()
	}
	if broken > 0 {
		t.fail("%d of %d connections that were open and quiet are broken.", broken, len(quiet))
	} else {
		t.pass("%d connections that were open, and quiet meanwhile, go on.", len(quiet))
	}
	t.note("Without rules the kernel translates no addresses: connections in use may break.")
	after, err := t.repairs()
	if after-before != flushes {
		t.fail("The metric of repairs rose by %d, want %d: %v", after-before, flushes, err)
		return nil
	}
	t.pass("Its metrics count them: sluice_repairs_total{cause=\"foreign-edit\"} %d", after)
	return nil
}

func (t *tour) flushRuleset() error {
	conn, err := nftables.New(nftables.WithNetNSFd(t.NodeA.NetNSFD()))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	conn.FlushRuleset()
	return conn.Flush()
}

// repairs returns how many foreign edits Sluice has repaired by its metrics.
func (t *tour) repairs() (int, error) {
	return t.metric(`sluice_repairs_total\{cause="foreign-edit"\} `)
}

// metric returns the value of the first metric that begins with a pattern, 0 if there is none yet.
func (t *tour) metric(pattern string) (int, error) {
	text, err := t.sluice.Get("http://127.0.0.1:10249/metrics")
	m := regexp.MustCompile(`(?m)^` + pattern + `(\d+)$`).FindSubmatch(text)
	if err != nil || m == nil {
		return 0, err
	}
	return strconv.Atoi(string(m[1]))
}
