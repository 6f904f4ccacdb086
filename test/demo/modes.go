//go:build linux

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// noAnswer is after how long a request counts as lost, shortly before TCP sends
// again.
const noAnswer = 800 * time.Millisecond

// modes starts sluice again with its other data plane, has somebody flush that,
// and goes back, while traffic flows.
func (t *tour) modes() error {
	const connections = 16
	t.head("The other data plane: kube-proxy's chains of iptables, there and back under traffic")
	chains, err := t.chains()
	if err != nil {
		t.note("%s", clip("Not shown on this machine: "+err.Error(), 95))
		t.learn("Modes", "iptables not shown on this machine")
		return nil
	}
	talk, err := t.converse(connections)
	if err != nil {
		t.fail("%v", err)
		return nil
	}
	made, err := t.thereAndBack(chains)
	asked, unanswered := talk.stop()
	if err != nil {
		return err
	}
	t.undisturbed(score{what: "Modes", connections: connections, made: made, asked: asked, unanswered: unanswered})
	return nil
}

// thereAndBack returns the requests that were made when the mode changed.
func (t *tour) thereAndBack(chains *chains) (requests, error) {
	t.say("%s", t.paint(blue, "$ sluice --config kube-proxy.conf --manifests examples/ --proxy-mode iptables"))
	there, err := t.change(`msg="Removed what Sluice left in another mode"`, "--proxy-mode", "iptables")
	if err != nil {
		return nil, err
	}
	t.pass("%d Services in kube-proxy's chains %s after the process started, in both IP families.", there.services, millis(there.took))
	t.pass("Then it removed its tables of the mode nftables, %s after the start:", millis(there.cleared))
	t.note("  %s", there.removed)
	tables, err := t.tables()
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(tables, func(name string) bool { return strings.HasSuffix(name, " sluice") }) {
		t.fail("In the kernel is still more than iptables has: %s.", list(tables))
	}
	if err := t.read(chains); err != nil {
		return nil, err
	}
	if err := t.mistake(chains); err != nil {
		return nil, err
	}
	t.ask([]string{"status"}, func(line string) bool { return starts(line, "Mode", "Rules", "Repaired") })
	t.say("%s", t.paint(blue, "$ sluice --config kube-proxy.conf --manifests examples/"))
	back, err := t.change(`msg="Removed what kube-proxy, or Sluice in mode iptables, left"`)
	if err != nil {
		return nil, err
	}
	t.pass("Back in nftables %s after the process started, and rid of the chains %s after.", millis(back.took), millis(back.cleared))
	t.note("KUBE-FIREWALL stays: it is kubelet's too.")
	left, err := chains.left()
	if err != nil {
		return nil, err
	}
	if len(left) > 0 {
		t.fail("Left are %d lines of iptables, such as %s", len(left), left[0])
	}
	return append(there.made, back.made...), nil
}

// changed is what a change of mode did.
type changed struct {
	services      int
	took, cleared time.Duration // from the start: until all was served, and the other mode's rules gone
	removed       string        // of the other mode
	made          requests
}

// change starts sluice again with further flags, while traffic flows. It waits
// for a line of its log.
func (t *tour) change(removed string, flags ...string) (changed, error) {
	flow := startTraffic(t.webWays())
	moment()
	_, err := t.end()
	var ready synced
	if err == nil {
		ready, err = t.run(flags...)
	}
	var gone entry
	if err == nil {
		gone, err = t.sluice.says(removed)
		moment()
	}
	made := flow.stop()
	return changed{
		services: ready.services, took: ready.when.Sub(t.sluice.born), cleared: gone.when.Sub(t.sluice.born),
		removed: quoted(gone.text, "removed"), made: made,
	}, err
}

// read shows the rules of a Service as people of kube-proxy know them.
func (t *tour) read(chains *chains) error {
	rules, err := chains.rules()
	if err != nil {
		return err
	}
	chain := clusterChain(rules, t.ways()[0].to.Addr().String())
	if chain == "" {
		t.fail("No chain of kube-proxy's is for %s:\n%s", t.ways()[0].to, strings.Join(rules, "\n"))
		return nil
	}
	t.say("%s", t.paint(blue, fmt.Sprintf("$ %s-save -t nat | grep %s", chains.program, chain)))
	for _, rule := range rules {
		if !regexp.MustCompile(`^-A KUBE-SERVICES .*` + chain + `|^-A ` + chain + ` -m comment`).MatchString(rule) {
			continue
		}
		for i, row := range fold(rule, 95) {
			t.note("%s%s", strings.Repeat("    ", min(i, 1)), row)
		}
	}
	fmt.Fprintln(t)
	return nil
}

// clusterChain finds the chain of a Service by its cluster address.
func clusterChain(rules []string, vip string) string {
	to := regexp.MustCompile(`^-A KUBE-SERVICES -d ` + regexp.QuoteMeta(vip) + `/32 .* -j (KUBE-SVC-\S+)$`)
	for _, rule := range rules {
		if m := to.FindStringSubmatch(rule); m != nil {
			return m[1]
		}
	}
	return ""
}

// fold breaks a rule into rows of a width, before its options.
func fold(rule string, width int) []string {
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

// mistake has somebody flush the table nat, and waits until it is put right.
func (t *tour) mistake(chains *chains) error {
	before, err := chains.rules()
	if err != nil {
		return err
	}
	paths := t.webWays()
	for i := range paths {
		paths[i].timeout = noAnswer
	}
	flow := startTraffic(paths)
	g, err := t.flushOnce(chains)
	made := flow.stop()
	if err != nil {
		return err
	}
	after, err := chains.rules()
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
		t.fail("The metric of repairs says %d, want 1.", repaired)
	}
	took := g.ended.Sub(g.begun)
	t.pass("%s after the command began, new connections worked again, with the same %d rules as before.", millis(took), len(after))
	if strings.HasSuffix(chains.program, "-legacy") {
		t.note("Of rules of iptables-legacy the kernel tells nobody: they are looked at every 3 s.")
	}
	lost := made.lost()
	later := len(lost) - len(lost.underWay(g))
	if later > 0 {
		t.fail("%d requests were lost while the rules were there: %s", later, lost.why())
	}
	t.pass("%s requests, lost %d: %d under way while there were no rules, %d later.", count(len(made)), len(lost), len(lost)-later, later)
	t.learn("Flush", "%s -t nat -F: put right after %s", chains.program, millis(took))
	return nil
}

// flushOnce is the mistake itself. In between there are rules for a moment.
func (t *tour) flushOnce(chains *chains) (gap, error) {
	moment()
	t.say("%s", t.paint(blue, fmt.Sprintf("$ %s -t nat -F", chains.program)))
	g := gap{begun: time.Now()}
	if _, err := chains.run(chains.program, "-t", "nat", "-F"); err != nil {
		return gap{}, err
	}
	g.deleted = time.Now()
	if err := t.back(); err != nil {
		return gap{}, err
	}
	g.ended = time.Now()
	moment()
	return g, nil
}
