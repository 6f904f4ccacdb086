//go:build linux

package direct

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/direct"
	"github.com/sluice-proxy/sluice/internal/direct/layer2"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Connections survive the loss of the node at which they enter, and pods see the address of the client, also if a node
// runs in mode ebpf.
func TestConnectionsSurviveANodeWithoutBackends(t *testing.T) {
	for _, mode := range []string{"nftables", "ebpf"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, 0, 1)
			if mode == "ebpf" {
				kerneltest.NeedPrograms(t)
				r.flags[0] = []string{
					"--proxy-mode=ebpf", "--bpf-dir=" + filepath.Join(lab.BPFFS(t), "sluice"), "--cgroup-root=" + r.nodes[0].Cgroup(),
				}
			}
			r.begin(0, 1)
			f := r.flows(100, lab.TCP, vip4)
			r.enterAt(0, 1)
			f.survive("the router leaves out node C")
			r.enterAt(1)
			f.survive("the router leaves out node A")
		})
	}
}

// Pods come up on a node that had none: a third of the connections now belong to it, and reach their old pods.
func TestConnectionsSurviveNewBackends(t *testing.T) {
	r := newRig(t, 0, 1, 2)
	sum := r.begin(0, 1)
	var all []*flows
	for _, vip := range []string{vip4, vip6} {
		all = append(all, r.flows(100, lab.TCP, vip))
	}
	r.apply(0, 1, 2)
	sum = r.agree(sum, 0, 1, 2)
	for _, f := range all {
		f.survive("pods come up on node C")
	}
	r.apply(1, 2) // node A drains its pod, whose connections stay
	r.agree(sum, 0, 1, 2)
	for _, f := range all {
		f.survive("the pod on node A drains")
	}
	r.enterAt(0)
	for _, f := range all {
		f.survive("all enter at node A")
	}
}

// UDP flows keep their backend when a node without backends is lost.
func TestUDPFlowsSurviveANodeWithoutBackends(t *testing.T) {
	r := newRig(t, 0, 1)
	r.begin(0, 1)
	var all []*flows
	for _, vip := range []string{vip4, vip6} {
		all = append(all, r.flows(50, lab.UDP, vip))
	}
	r.enterAt(0, 1)
	for _, f := range all {
		f.survive("the router leaves out node C")
	}
}

// After many changes, whatever their order, connections still reach their pods.
func TestConnectionsSurviveManyChanges(t *testing.T) {
	r := newRig(t, 0, 1, 2, 0, 1, 2)
	r.begin(0, 1, 2)
	f := r.flows(100, lab.TCP, vip4)
	random := rand.New(rand.NewPCG(1, 2))
	have := []int{0, 1, 2, 3, 4, 5}
	for change := range 30 {
		if n := random.IntN(6); slices.Contains(have, n) && len(have) > 1 {
			have = slices.DeleteFunc(slices.Clone(have), func(m int) bool { return m == n })
		} else {
			have = append(have, n)
		}
		r.applyPods(have...) // nodes follow at their own pace, and may see two changes as one
		f.survive(fmt.Sprintf("change %d, %v", change, have))
	}
}

// A node whose daemon hangs during a change is no obstacle, whether it owned slots before, owns them now or neither.
func TestConnectionsSurviveANodeThatLags(t *testing.T) {
	for lags := range 3 {
		t.Run(fmt.Sprintf("node %d", lags), func(t *testing.T) {
			r := newRig(t, 0, 1, 2)
			sum := r.begin(0, 1)
			f := r.flows(100, lab.TCP, vip4)
			r.signal(lags, syscall.SIGSTOP)
			r.apply(0, 1, 2)
			r.agree(sum, others(lags)...)
			f.survive("a change that the node does not know")
			r.masquerade = lags == 2 // it does not know yet that it has a pod
			during := r.flows(100, lab.TCP, vip4)
			defer during.end()
			r.enterAt(others(lags)...)
			f.survive("nothing enters there")
			during.survive("connections since the change")
			r.enterAt(lags)
			f.survive("all enter there")
			r.signal(lags, syscall.SIGCONT)
			r.agree(sum, 0, 1, 2)
			f.survive("it follows")
		})
	}
}

func others(than int) []int {
	return slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == than })
}

// Daemons that are killed and start again, and tables that another program flushes, break nothing.
func TestConnectionsSurviveRestarts(t *testing.T) {
	r := newRig(t, 0, 1, 2)
	sum := r.begin(0, 1)
	f := r.flows(100, lab.TCP, vip4)
	r.apply(0, 1, 2)
	r.agree(sum, 0, 1, 2)
	f.survive("pods come up on node C")
	for i := range r.nodes {
		r.signal(i, syscall.SIGKILL)
		<-r.daemons[i].Ended()
		f.survive("killed")
		r.start(i)
		r.agree(sum, 0, 1, 2)
		f.survive("started again")
	}
	r.nodes[0].MustRun("nft", "delete", "table", "netdev", "sluice-direct-2")
	harness.Eventually(r, timeout, func() error {
		_, err := r.nodes[0].Run("", "nft", "list", "table", "netdev", "sluice-direct")
		return err
	})
}

// --cleanup removes the tables, and without the annotation there are none.
func TestTablesAreRemoved(t *testing.T) {
	r := newRig(t, 0, 1)
	r.begin(0, 1)
	tables := func() string { return r.nodes[0].MustRun("nft", "list", "tables") }
	if got := tables(); !strings.Contains(got, "table netdev sluice-direct\n") {
		t.Fatalf("got %s, want the table of direct", got)
	}
	r.signal(2, syscall.SIGSTOP)
	for _, table := range layer2.Tables()[:3] { // what nft prints loads again
		list := fmt.Sprintf("nft list table %s", table)
		again := fmt.Sprintf("%s >$0; nft delete table %s; nft -f $0; %s | diff $0 -", list, table, list)
		r.nodes[2].MustRun("sh", "-ec", again, filepath.Join(r.dir, "listing"))
	}
	r.signal(2, syscall.SIGCONT)
	r.annotation = "cluster"
	r.apply(0, 1)
	harness.Eventually(r, timeout, func() error {
		if got := tables(); strings.Contains(got, "direct") {
			return fmt.Errorf("got %s, want no table of direct", got)
		}
		return nil
	})
	r.annotation = "direct"
	r.apply(0, 1)
	r.agree("", 0, 1, 2)
	r.signal(0, syscall.SIGTERM)
	<-r.daemons[0].Ended()
	path, err := harness.Program()
	r.must(err)
	if got := r.nodes[0].MustRun(path, "--cleanup") + tables(); strings.Contains(tables(), "sluice") {
		t.Errorf("after --cleanup: %s", got)
	}
}

// A client cannot make nodes pass a packet on for ever, or multiply it: not with the address of a node as its source,
// not with few hops, not with segments of no connection, and not while nodes disagree.
func TestForgedPacketsDoNotMultiply(t *testing.T) {
	r := newRig(t, 0, 1, 2)
	sum := r.begin(0, 1)
	r.masquerade = true
	r.signal(0, syscall.SIGSTOP) // disagrees from now on
	r.apply(1, 2)
	sum = r.agree(sum, 1, 2)
	r.signal(1, syscall.SIGSTOP)
	r.apply(0, 2)
	r.agree(sum, 2)
	const packets = 300
	for _, c := range []struct {
		what   string
		source netip.Addr
		flags  byte
		hops   byte
	}{
		{"segments of no connection", netip.MustParseAddr("203.0.113.77"), ack, 64},
		{"the address of a node", r.nodes[1].Addr4(), ack, 64},
		{"one hop", netip.MustParseAddr("203.0.113.77"), ack, 1},
		{"the hops of a second chance", netip.MustParseAddr("203.0.113.77"), ack, 16},
		{"new connections", netip.MustParseAddr("203.0.113.77"), syn, 64},
	} {
		before := r.received()
		for i := range packets {
			r.forge(netip.AddrPortFrom(c.source, uint16(1024+i)), netip.MustParseAddr(vip4), c.flags, c.hops)
		}
		r.flows(1, lab.TCP, vip4).survive("after " + c.what) // what was sent before has arrived
		// Each comes in once, is passed on once, and then Passes times at most; the answers and the flow come in, too.
		if n := r.received() - before; n > packets*(2+direct.Passes)+packets/2 {
			t.Errorf("%s: nodes receive %d packets for %d", c.what, n, packets)
		} else {
			t.Logf("%s: nodes receive %d packets for %d", c.what, n, packets)
		}
	}
}
