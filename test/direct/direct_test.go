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
	"time"

	"github.com/sluice-proxy/sluice/internal/direct"
	"github.com/sluice-proxy/sluice/internal/direct/layer2"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Connections survive the loss of the entry node, and pods see the address of the client. In the second case one node
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
	r.openTunnels()
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
	r.disagree()
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
		if n := r.received() - before; n > packets*(2+direct.MaxPasses)+packets/2 {
			t.Errorf("%s: nodes receive %d packets for %d", c.what, n, packets)
		} else {
			t.Logf("%s: nodes receive %d packets for %d", c.what, n, packets)
		}
	}
}

// Packets that are passed on keep their DSCP, and the source ranges of the Service hold wherever they enter.
func TestSourceRangesAndDSCPAreKept(t *testing.T) {
	r := newRig(t, 0, 1)
	allowed := []string{r.lab.Outside.Addr4().String() + "/32", r.lab.Outside.Addr6().String() + "/128"}
	r.spec = object{"loadBalancerSourceRanges": allowed}
	r.begin(0, 1)
	r.lab.Outside.Nft(fmt.Sprintf(`table inet dscp {
		chain output {
			type filter hook output priority 0
			ip daddr %s ip dscp set ef
			ip6 daddr %s ip6 dscp set ef
		}
	}`, vip4, vip6))
	for _, n := range r.nodes {
		n.Nft(`table inet count {
			counter ef {}
			counter other {}
			chain forward {
				type filter hook forward priority 0
				ip saddr 10.180.0.0/16 return
				ip6 saddr fd00:10:180::/48 return
				ip dscp ef counter name ef return
				ip6 dscp ef counter name ef return
				counter name other
			}
		}`)
	}
	outcomes := func() map[lab.Outcome]int {
		sum := map[lab.Outcome]int{}
		for i := range r.nodes {
			r.enterAt(i)
			var probes []lab.Probe
			for _, vip := range []string{vip4, vip6} {
				to := netip.AddrPortFrom(netip.MustParseAddr(vip), 80)
				probes = append(probes, slices.Repeat([]lab.Probe{{Protocol: lab.TCP, To: to, Timeout: 2 * time.Second}}, 10)...)
			}
			for outcome, n := range lab.Outcomes(r.lab.Outside.TryAll(probes...)) {
				sum[outcome] += n
			}
		}
		return sum
	}
	if got := outcomes(); got[lab.Answered] != 60 {
		t.Fatalf("from a source that is allowed: %v", got)
	}
	for i, n := range r.nodes {
		counters := n.MustRun("nft", "list", "counters")
		ef, other := strings.Contains(counters, "ef {\n\t\tpackets 0"), strings.Contains(counters, "other {\n\t\tpackets 0")
		if ef != (i == 2) || !other {
			t.Errorf("node %d: %s, want DSCP EF in all packets to pods", i, counters)
		}
	}
	r.spec = object{"loadBalancerSourceRanges": []string{"192.0.2.0/24", "2001:db8:2::/48"}}
	r.apply(0, 1)
	harness.Eventually(r, timeout, func() error {
		if got := outcomes(); got[lab.TimedOut] != 60 {
			return fmt.Errorf("from a source that is not allowed: %v", got)
		}
		return nil
	})
}
