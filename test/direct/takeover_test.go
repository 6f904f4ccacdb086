//go:build linux

package direct

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The annotation comes and goes while the daemons run: connections that begin after that are served, and those that
// enter at their owner continue.
func TestTheAnnotationComesAndGoes(t *testing.T) {
	r := newRig(t, 0, 1)
	r.annotation, r.masquerade = "", true
	r.apply(0, 1)
	for i := range r.nodes {
		r.start(i)
	}
	r.served()
	plain := r.flows(100, lab.TCP, vip4)
	r.annotation, r.masquerade = "direct", false
	r.apply(0, 1)
	sum := r.agree("", 0, 1, 2)
	t.Logf("on: %d of 100 flows break", plain.round())
	f := r.flows(100, lab.TCP, vip4)
	r.enterAt(0)
	f.survive("all enter at node A")
	r.enterAt(0, 1, 2)
	r.annotation, r.masquerade = "", true
	r.apply(0, 1)
	r.noTables(0, 1, 2)
	t.Logf("off: %d of 100 flows break", f.round())
	again := r.flows(100, lab.TCP, vip4)
	again.survive("without the annotation")
	r.annotation, r.masquerade = "direct", false
	r.apply(0, 1)
	if got := r.agree("", 0, 1, 2); got != sum {
		t.Errorf("nodes agree on %s, before they did on %s", got, sum)
	}
	r.flows(100, lab.TCP, vip4).survive("on again")
}

// served waits until the Service is served wherever connections enter.
func (r *rig) served() {
	r.Helper()
	for i := range r.nodes {
		r.enterAt(i)
		harness.Eventually(r, timeout, func() error {
			flow, res := r.lab.Outside.Open(lab.Probe{Protocol: lab.TCP, To: web(), Timeout: lab.Soon})
			if flow == nil {
				return fmt.Errorf("node %d: %s", i, res)
			}
			flow.Close()
			return nil
		})
	}
	r.enterAt(0, 1, 2)
}

// noTables waits until nodes have no tables.
func (r *rig) noTables(nodes ...int) {
	r.Helper()
	harness.Eventually(r, timeout, func() error {
		for _, i := range nodes {
			if got := r.nodes[i].MustRun("nft", "list", "tables"); strings.Contains(got, "sluice-direct") {
				return fmt.Errorf("node %d has %s", i, got)
			}
		}
		return nil
	})
}

// Daemons are killed while they write tables, whose owners change all the time, and start again. No connection breaks.
func TestConnectionsSurviveKillsInTheMiddleOfAWrite(t *testing.T) {
	r := newRig(t, 0, 1, 2)
	r.begin(0, 1, 2)
	f := r.flows(100, lab.TCP, vip4)
	both := 0 // how often a daemon left two generations of tables
	for n := range 12 {
		r.apply([][]int{{0, 1}, {1, 2}, {0, 1, 2}}[n%3]...)
		node := n % 3
		r.signal(node, syscall.SIGKILL)
		<-r.daemons[node].Ended()
		before := r.generations(node)
		r.start(node) // it builds tables under the other name, and then deletes these
		r.must(r.daemons[node].Until(timeout, "other tables", func() error {
			if now := r.generations(node); now == before {
				return fmt.Errorf("there are still %s", now)
			}
			return nil
		}))
		r.signal(node, syscall.SIGKILL)
		<-r.daemons[node].Ended()
		if strings.Contains(r.generations(node), " ") {
			both++
		}
		r.start(node)
		f.survive(fmt.Sprintf("kill %d, of node %d", n, node))
	}
	r.agree("", 0, 1, 2)
	f.survive("all run")
	t.Logf("%d of 12 kills left two generations of tables", both)
	if both == 0 {
		t.Error("no kill was in the middle of a write")
	}
}

// generations returns the names of the netdev tables of a node.
func (r *rig) generations(node int) string {
	r.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(r.nodes[node].NetNSFD()))
	r.must(err)
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyNetdev)
	r.must(err)
	var names []string
	for _, table := range tables {
		names = append(names, table.Name)
	}
	return strings.Join(names, " ")
}

// A mode that cannot do it says so, and removes the tables of mode nftables, which has them again afterwards.
func TestOtherModesReportTheAnnotation(t *testing.T) {
	r := newRig(t, 0, 1)
	r.begin(0, 1)
	for _, mode := range []string{"iptables", "userspace"} {
		r.signal(0, syscall.SIGTERM)
		<-r.daemons[0].Ended()
		r.flags[0] = []string{"--proxy-mode=" + mode}
		r.start(0)
		harness.Eventually(r, timeout, func() error {
			var s inspect.Status
			if err := admin.Dial(admin.Options{NetNS: r.nodes[0].NetNSFD()}).Get(r.Context(), "/status", nil, &s); err != nil {
				return err
			}
			if !strings.Contains(fmt.Sprint(s.Problems), "mode "+mode+" cannot do this") || s.Direct != nil {
				return fmt.Errorf("mode %s has problems %v and direct %v", mode, s.Problems, s.Direct)
			}
			return nil
		})
		r.noTables(0)
		r.masquerade = true
		r.flows(50, lab.TCP, vip4).survive("mode " + mode)
		r.signal(0, syscall.SIGTERM)
		<-r.daemons[0].Ended()
		r.flags[0] = nil
		r.start(0)
		r.agree("", 0, 1, 2)
		r.masquerade = false
		r.flows(50, lab.TCP, vip4).survive("after mode " + mode)
	}
}
