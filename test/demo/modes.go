//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// mode is another mode, which a chapter shows: Sluice changes to it, and back to nftables, under traffic.
type mode struct {
	name, title string
	show        func() error
	lacks       bool // this machine lacks something for it
}

// modes returns the other modes in the order of their chapters.
func (t *tour) modes() []*mode {
	return []*mode{
		{name: "iptables", title: "kube-proxy's chains", show: t.chains},
		{name: "ipvs", title: "virtual servers of the kernel, which counts their connections", show: t.ipvs},
		{name: "ebpf", title: "a backend is chosen when a socket connects", show: t.ebpf},
		{name: "userspace", title: "the process balances, and tries another backend", show: t.userspace},
	}
}

// announce finds out which modes this machine cannot show, by sluice preflight, and prints why and what to do.
func (t *tour) announce(modes []*mode) error {
	head := "\n     This machine cannot show\n"
	for _, m := range modes {
		answer, err := t.preflight(m.name)
		if err != nil {
			return err
		}
		why, command, err := lacks(answer)
		if err != nil {
			return fmt.Errorf("read the answer of sluice preflight --proxy-mode %s: %w", m.name, err)
		}
		if m.lacks = why != ""; !m.lacks {
			continue
		}
		if why, command = asUser(why, command); command != "" {
			why += ": " + command
		}
		fmt.Fprint(t, head)
		head = ""
		t.say("  mode %-9s  %s", m.name, why)
	}
	return nil
}

// preflight returns what sluice preflight prints about a mode on node A.
func (t *tour) preflight(name string) (out []byte, err error) {
	cmd := exec.Command(t.options.sluice, "preflight", "-o", "json", "--config", t.files.config,
		"--manifests", t.files.manifests, "--proxy-mode", name, "--cgroup-root", t.NodeA.Cgroup())
	err = t.NodeA.Do(func() error {
		out, err = cmd.Output()
		return err
	})
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 && len(out) > 0 {
		return out, nil // it names what is missing
	}
	return out, err
}

// missing finds in a line of sluice preflight what keeps a mode from serving.
const missing = `(?:missing kernel feature|mode \w+ not tested|sockets were not tested|packet by packet): (.*)`

// lacks returns what a machine lacks by the answer of sluice preflight, "" if nothing, and the command that loads what
// is a module.
func lacks(answer []byte) (why, command string, err error) {
	var findings struct{ Items []struct{ Found string } }
	if err := json.Unmarshal(answer, &findings); err != nil {
		return "", "", err
	}
	var reasons, modules []string
	for _, f := range findings.Items {
		m := regexp.MustCompile(missing).FindStringSubmatch(f.Found)
		if m == nil {
			continue
		}
		reason, remedy, _ := strings.Cut(m[1], ": load it with: ")
		reasons = append(reasons, strings.TrimPrefix(reason, "missing kernel feature: "))
		if m := regexp.MustCompile(`modprobe (\w+)`).FindStringSubmatch(remedy); m != nil {
			modules = append(modules, m[1])
		}
	}
	if len(modules) > 0 {
		command = "modprobe -a " + strings.Join(modules, " ")
	}
	return strings.Join(reasons, ", "), command, nil
}

// asUser returns what a machine lacks as the user of the demo sees it: all that is no module may be for want of root's
// rights.
func asUser(why, command string) (string, string) {
	ids, err := os.ReadFile("/proc/self/uid_map") // inside, outside, number
	if f := strings.Fields(string(ids)); err != nil || len(f) > 1 && f[1] == "0" {
		return why, command
	}
	if command != "" {
		return why, "sudo " + command
	}
	return "it needs root", "sudo make demo"
}

// chapterOf is the chapter about a mode.
func (t *tour) chapterOf(m *mode) error {
	t.head("Mode %s: %s", m.name, m.title)
	if !m.lacks {
		return m.show()
	}
	t.note("This machine cannot show it: see the beginning.")
	t.addFact("Mode "+m.name, "not shown on this machine")
	return nil
}

// Log lines by which Sluice reports that it removed what another mode left.
const (
	removedOurs  = `msg="Removed leftovers of Sluice in another mode"`
	removedRules = `msg="Removed leftovers of kube-proxy or of another mode"`
)

// moves are the log lines that end a change to a mode and the one back; empty if the change does not remove at once
// what the other mode left.
type moves struct{ there, back string }

// thereAndBack changes to a mode, shows it, and changes back, under traffic and with open connections.
func (t *tour) thereAndBack(name string, m moves, show func() error) error {
	const connections = 16
	stop, err := startQuestions(t.ways(), connections)
	if err != nil {
		return err
	}
	defer stop()
	there, err := t.changeMode(m.there, "--proxy-mode", name)
	if err != nil {
		return err
	}
	t.pass("%d Services in mode %s %s after the process started, in both IP families.",
		there.services, name, millis(there.took))
	if m.there != "" {
		t.pass("Then it removed its tables of the mode nftables, %s after the start:", millis(there.cleared))
		t.note("  %s", there.removed)
	}
	if err := show(); err != nil {
		return err
	}
	back, err := t.changeMode(m.back)
	if err != nil {
		return err
	}
	t.pass("Back in nftables %s after the process started.", millis(back.took))
	if m.back != "" {
		t.pass("Then it removed what mode %s left, %s after the start.", name, millis(back.cleared))
	}
	asked, unanswered := stop()
	t.losses("Mode "+name, append(there.made, back.made...))
	t.reportOpen(connections, asked, unanswered)
	return nil
}

type modeChange struct {
	synced
	cleared time.Duration // from the start until the rules of the other mode were removed
	removed string        // of the other mode
	made    requests
}

// changeMode restarts Sluice with additional flags, under traffic, and waits until it
// logs that it removed the rules of the other mode, unless removed is empty.
func (t *tour) changeMode(removed string, flags ...string) (c modeChange, err error) {
	flow := startTraffic(t.webWays())
	defer flow()
	shortPause()
	if _, err := t.stop(); err != nil {
		return c, err
	}
	if c.synced, err = t.start(flags...); err != nil {
		return c, err
	}
	if removed != "" {
		gone, err := t.sluice.Logs(limit, removed)
		if err != nil {
			return c, err
		}
		c.cleared, c.removed = gone.Time.Sub(t.sluice.Began), gone.Field("removed")
	}
	shortPause()
	c.made = flow()
	return c, nil
}

// ipvs shows how many connections of each backend the kernel counts.
func (t *tour) ipvs() error {
	err := t.thereAndBack("ipvs", moves{removedOurs, ""}, func() error {
		t.ask("get backends web")
		n := 0
		err := t.sluice.Until(limit, "connections are counted", func() (err error) { // the kernel sums up every 2 s
			n, err = t.metric(`sluice_ipvs_connections_total\{ip_family="IPv4".*service="web"} `)
			if err == nil && n == 0 {
				err = errors.New("there are none")
			}
			return err
		})
		t.pass("Its metrics count them: sluice_ipvs_connections_total %d for IPv4", n)
		return err
	})
	t.note("Virtual servers stay until their connections have ended.")
	return err
}

// ebpf shows that connections of a pod need no translation by conntrack.
func (t *tour) ebpf() error {
	const connections = 300
	return t.thereAndBack("ebpf", moves{"", removedOurs}, func() error {
		if err := t.sluice.Until(limit, "the client is found", func() error {
			return harness.Known("/sys/fs/bpf/sluice", t.client)
		}); err != nil {
			return err
		}
		w := t.ways()[0]
		t.ask("explain "+t.client.Addr4().String()+" "+w.to.String(), t.client.Addr4().String(), "  Path")
		results := t.client.Repeat(connections, lab.Probe{Protocol: lab.TCP, To: w.to})
		translated, err := t.translated(results, w.to)
		if err != nil {
			return err
		}
		if n := lab.Outcomes(results)[lab.Answered]; n != connections || translated > 0 {
			t.fail("%d of %d connections were answered, %d were translated.", n, connections, translated)
			return nil
		}
		t.pass("%d connections of a pod: conntrack translated 0 of them, packets go straight to the backend.", connections)
		t.addFact("Sockets", "%d connections in mode ebpf, 0 translated", connections)
		return nil
	})
}

// translated returns how many of the connections to an IPv4 address conntrack has on node A.
func (t *tour) translated(results []lab.Result, to netip.AddrPort) (n int, err error) {
	var flows []*netlink.ConntrackFlow
	err = t.NodeA.Do(func() error {
		flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		return err
	})
	for _, f := range flows {
		dst, _ := netip.AddrFromSlice(f.Forward.DstIP.To4())
		if netip.AddrPortFrom(dst, f.Forward.DstPort) == to && slices.ContainsFunc(results, func(r lab.Result) bool {
			return r.Local.Port() == f.Forward.SrcPort
		}) {
			n++
		}
	}
	return n, err
}

// userspace stops the server of a backend that its EndpointSlice still lists: the kernel sends clients there, and the
// process tries another backend before they notice.
func (t *tour) userspace() error {
	const connections = 150
	broken := &t.pods[1]
	broken.web.Close()
	t.note("The server of %s has stopped, but its EndpointSlice still lists it.", broken.label)
	refused := t.refusedOf(connections)
	t.say("%-12s%d of %d connections were refused", "nftables", refused, connections)
	if err := t.restart(removedOurs, "--proxy-mode", "userspace"); err != nil {
		return err
	}
	if refused = t.refusedOf(connections); refused > 0 {
		t.fail("%d of %d connections were refused in mode userspace.", refused, connections)
	}
	t.say("%-12s%d of %d connections were refused", "userspace", refused, connections)
	retries, err := t.metric(`sluice_userspace_retries_total\{.*service="web"} `)
	if err != nil || retries == 0 {
		t.fail("The metric of retries is %d: %v", retries, err)
	}
	t.pass("%d of them were for %s first: sluice_userspace_retries_total %d", retries, broken.label, retries)
	t.addFact("Mode userspace", "a broken backend, and %d of %d connections refused", refused, connections)
	broken.web = broken.Serve(lab.TCP, webPort)
	t.note("Its connections end with the process.")
	return t.restart(removedRules)
}

// refusedOf returns how many of n connections from outside to Service web have no answer.
func (t *tour) refusedOf(n int) int {
	w := t.ways()[4]
	return n - lab.Outcomes(w.from.Repeat(n, lab.Probe{Protocol: lab.TCP, To: w.to}))[lab.Answered]
}

// restart changes to a mode without traffic, and waits until the rules of the other one are removed.
func (t *tour) restart(removed string, flags ...string) error {
	if _, err := t.stop(); err != nil {
		return err
	}
	if _, err := t.start(flags...); err != nil {
		return err
	}
	_, err := t.sluice.Logs(limit, removed)
	return err
}
