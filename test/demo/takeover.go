//go:build linux

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// takeOver starts sluice on a node that kube-proxy has served so far.
func (t *tour) takeOver() error {
	const connections = 16
	t.head("Take over: a node that kube-proxy has served, under traffic")
	if err := t.prepare(); err != nil {
		return err
	}
	if t.answersNot() {
		return nil
	}
	had, err := t.tables()
	if err != nil {
		return err
	}
	t.note("What a real kube-proxy left for these Services is in the kernel, and serves them:")
	t.note("%s, recorded from Kubernetes 1.36.", list(had))
	talk, err := t.converse(connections)
	if err != nil {
		t.fail("%v", err)
		return nil
	}
	flow := startTraffic(t.webWays())
	moment()
	t.say("%s", t.paint(blue, "$ sluice --config kube-proxy.conf --manifests examples/"))
	ready, err := t.run()
	var gone entry
	if err == nil {
		gone, err = t.sluice.says(`msg="Removed what kube-proxy left"`)
		moment()
	}
	made := flow.stop()
	asked, unanswered := talk.stop()
	if errors.Is(err, errGone) {
		return unable{err}
	}
	if err != nil {
		return err
	}
	took := ready.when.Sub(t.sluice.born)
	t.pass("%d Services in the kernel %s after the process started, in both IP families.", ready.services, millis(took))
	t.learn("Start", "%d Services in the kernel after %s", ready.services, millis(took))
	t.pass("Then it removed what kube-proxy had left, %s after the start:", millis(gone.when.Sub(t.sluice.born)))
	t.note("  %s", quoted(gone.text, "removed"))
	t.undisturbed(score{what: "Take-over", connections: connections, made: made, asked: asked, unanswered: unanswered})
	return nil
}

// prepare copies the manifests, writes a configuration and has the node served
// by the rules that kube-proxy left.
func (t *tour) prepare() error {
	var err error
	if t.manifests, err = copyManifests(t.examples); err != nil {
		return err
	}
	if t.settings, err = newSettings(filepath.Join(filepath.Dir(t.manifests.dir), "config")); err != nil {
		return err
	}
	messages, err := parseMessages(recorded)
	if err != nil {
		return fmt.Errorf("read the rules that kube-proxy left: %w", err)
	}
	if err := load(t.NodeA.NetNSFD(), messages); err != nil {
		return unable{fmt.Errorf("this kernel does not take kube-proxy's rules: %w: sluice needs nf_tables as well (modprobe nf_tables)", err)}
	}
	return nil
}

// answersNot reports, and says, that a Service is not served.
func (t *tour) answersNot() bool {
	for _, p := range t.ways() {
		if r := p.from.Dial(lab.TCP, p.to); r.Outcome != lab.Answered {
			t.fail("%s: %s", p, r)
			return true
		}
	}
	return false
}

// score is what traffic saw of an event.
type score struct {
	what              string // the event
	connections       int    // that were open all along
	made              requests
	asked, unanswered int // over the open connections
}

// undisturbed says that nobody noticed the event.
func (t *tour) undisturbed(s score) {
	t.losses(s.what, s.made)
	if s.unanswered > 0 || s.asked == 0 {
		t.fail("%d open connections: %d of %d questions had no answer.", s.connections, s.unanswered, s.asked)
		return
	}
	t.pass("%d connections that were open all along: %s questions, lost 0.", s.connections, count(s.asked))
}

// says waits until the log has a line with a text.
func (d *daemon) says(text string) (entry, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if e, ok := d.log.find(text); ok {
			return e, nil
		}
	}
	return entry{}, fmt.Errorf("sluice does not say %s after %v; its log ends:\n%s", text, patience, d.log.last(10))
}

// quoted reads a text off a line of the log.
func quoted(line, name string) string {
	m := regexp.MustCompile(`\b` + name + `=("([^"]*)"|\S+)`).FindStringSubmatch(line)
	switch {
	case m == nil:
		return ""
	case m[2] != "":
		return m[2]
	}
	return m[1]
}
