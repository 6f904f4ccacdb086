//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// underTraffic runs an event while clients make new connections to Service web and others hold connections on all
// ways, and reports their losses.
func (t *tour) underTraffic(what string, connections int, event func() error) error {
	stop, err := startQuestions(t.ways(), connections)
	if err != nil {
		return err
	}
	flow := startTraffic(t.webWays())
	shortPause()
	err = event()
	shortPause()
	made := flow()
	asked, unanswered := stop()
	if err != nil {
		return err
	}
	t.losses(what, made)
	t.reportOpen(connections, asked, unanswered)
	return nil
}

// losses reports requests without an answer.
func (t *tour) losses(what string, made requests) {
	if lost := made.lost(); len(lost) > 0 || len(made) == 0 {
		t.fail("%s requests, lost %d: %s", count(len(made)), len(lost), append(lost, request{})[0].result)
		return
	}
	times := made.times()
	p99 := millis(harness.Quantile(times, 0.99))
	t.pass("%s requests, %s. Median %s, p99 %s, slowest %s.", count(len(made)), t.paint(strong, "lost 0"),
		millis(harness.Quantile(times, 0.5)), p99, millis(harness.Quantile(times, 1)))
	t.addFact(what, "%s requests, lost 0; p99 %s", count(len(made)), p99)
}

func (t *tour) reportOpen(connections, asked, unanswered int) {
	if unanswered > 0 || asked == 0 {
		t.fail("%d open connections: %d of %d questions had no answer.", connections, unanswered, asked)
		return
	}
	t.pass("%d connections that were open all along: %s questions, lost 0.", connections, count(asked))
}

// takeOver starts Sluice on a node that kube-proxy has served so far.
func (t *tour) takeOver() (err error) {
	t.head("Take over: a node that kube-proxy has served, under traffic")
	if t.files, err = newFiles(t.examples); err != nil {
		return err
	}
	if err := loadRules(t.NodeA); err != nil {
		return fmt.Errorf("%w: this kernel does not take kube-proxy's rules: %w: "+
			"sluice needs nf_tables as well (modprobe nf_tables)", errCannot, err)
	}
	had, err := t.tables()
	if err != nil {
		return err
	}
	t.note("The rules of a real kube-proxy for these Services are in the kernel and serve them:")
	t.note("%s, recorded from Kubernetes 1.36.", strings.Join(had, ", "))
	return t.underTraffic("Take-over", 16, func() error {
		s, err := t.start()
		if errors.Is(err, harness.ErrEnded) {
			return fmt.Errorf("%w: sluice ended:\n  %s", errCannot, lastLine(t.sluice.Log))
		}
		if err != nil {
			return err
		}
		t.pass("%d Services in the kernel %s after the process started, in both IP families.", s.services, millis(s.took))
		t.addFact("Start", "%d Services in the kernel after %s", s.services, millis(s.took))
		gone, err := t.sluice.Logs(limit, `msg="Removed leftovers of kube-proxy or of another mode"`)
		if err != nil {
			return err
		}
		t.pass("Then it removed the rules of kube-proxy, %s after the start:", millis(gone.Time.Sub(t.sluice.Began)))
		t.note("  %s", gone.Field("removed"))
		return nil
	})
}

func lastLine(l *harness.Log) string {
	text := strings.TrimSpace(l.String())
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// settling is the time after a change in which the balance is not checked.
const settling = 300 * time.Millisecond

// scale changes the number of backends while traffic flows.
func (t *tour) scale() error {
	t.head("Scale while traffic flows: 3, 5, 1 backends, %s requests a second", count(perWay*len(t.webWays())))
	flow := startTraffic(t.webWays())
	defer flow()
	numbers, changed := []int{3, 5, 1}, []time.Time{time.Now()}
	for _, n := range numbers[1:] {
		longPause()
		now, err := t.files.scale("web.yaml", addrs(t.pods[:n]))
		if err != nil {
			return err
		}
		changed = append(changed, now)
	}
	longPause()
	made := flow()
	changed = append(changed, time.Now())
	t.note("%-15s%-15s%-15s%-15s%-15s%s", "", "A1", "A2", "B1", "A3", "B2")
	for i, n := range numbers {
		settled := made.between(changed[i].Add(settling), changed[i+1])
		counts := perPod(settled.results(), t.pods[:n])
		t.say("%-15s%s", strings.TrimSuffix(fmt.Sprintf("%d backends", n), strings.Repeat("s", 1/n)), t.bars(counts))
		if !fair(counts) {
			t.fail("A fair random balance does not explain these shares.")
		}
		if strays := len(settled) - len(settled.answeredBy(addrs(t.pods[:n]))) - len(settled.lost()); strays > 0 {
			t.fail("%d requests reached a backend that was removed %v before.", strays, settling)
		}
	}
	t.note("Pods that leave keep running while they drain, as in a cluster.")
	t.reaction(made, changed)
	t.losses("Scaling", made)
	return nil
}

// reaction reports how soon connections followed the manifest.
func (t *tour) reaction(made requests, changed []time.Time) {
	joined := made.between(changed[1].Add(-time.Second), changed[2]).answeredBy(addrs(t.pods[3:]))
	if len(joined) == 0 {
		t.fail("No request reached a new backend.")
		return
	}
	first := slices.MinFunc(joined, func(a, b request) int { return a.ended.Compare(b.ended) }).ended.Sub(changed[1])
	t.pass("The first request reached a new backend %s after the file was written.", millis(first))
	t.addFact("Scale up", "%s from the file to the first request on a new backend", millis(first))
	var last time.Duration
	for _, q := range made.between(changed[2], changed[3]).answeredBy(addrs(t.pods[1:])) {
		last = max(last, q.began.Sub(changed[2]))
	}
	t.pass("The last request for a removed one began %s after.", millis(last))
	t.addFact("Scale down", "%s from the file to the last request on a removed backend", millis(last))
}

// reload enables NodePorts at a second address of the node by a change of the configuration file.
func (t *tour) reload() error {
	t.head("Reload: nodePortAddresses in the configuration, changed as a ConfigMap changes")
	second := way{from: t.Outside, client: "outside", kind: "NodePort", to: netip.MustParseAddrPort("192.168.1.2:30080")}
	if r := second.request(); r.Outcome != lab.Refused && r.Outcome != lab.Reset {
		t.fail("%s: %s, want a refusal", second.to, r)
		return nil
	}
	t.say("%srefused: the node's second address serves none", second)
	flow := startTraffic(t.webWays())
	defer flow()
	shortPause()
	now, err := t.files.configure("192.168.0.0/16", "2001:db8::/64")
	if err != nil {
		return err
	}
	r := until(second, answered)
	took := millis(time.Since(now))
	shortPause()
	if err := t.sluice.Alive(); err != nil || r.Outcome != lab.Answered {
		t.fail("%s: %s; %v", second.to, r, err)
		return nil
	}
	t.pass("It answers %s after the file was changed; the process (pid %d) is the same.", took, t.sluice.PID)
	t.addFact("Reload", "%s from the new configuration to the first answer", took)
	t.losses("", flow())
	return nil
}

// crash kills Sluice and starts it again.
func (t *tour) crash() error {
	const connections = 20
	t.head("Crash: kill -9 while traffic flows")
	var s synced
	err := t.underTraffic("Crash", connections, func() error {
		if _, err := t.sluice.Stop(unix.SIGKILL, limit); err != nil {
			return err
		}
		died := time.Now()
		longPause()
		var err error
		if s, err = t.start(); err != nil {
			return err
		}
		t.say("Killed. %s later started again, and back after %s.", millis(t.sluice.Began.Sub(died)), millis(s.took))
		longPause()
		return nil
	})
	if err != nil {
		return err
	}
	if s.steps != 0 {
		t.fail("The restart wrote %d changes, but nothing had changed.", s.steps)
		return nil
	}
	t.pass("The restart found everything in place and wrote %s.", t.paint(strong, "0 changes"))
	t.addFact("Restart", "wrote 0 changes; %d open connections undisturbed", connections)
	return nil
}
