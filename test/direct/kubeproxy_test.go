//go:build linux

package direct

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Daemons take over nodes from kube-proxy, one after the other, and the Service has the annotation from the start. At
// no moment a new connection is refused or waits, wherever it enters, although some nodes still have the rules of
// kube-proxy. Of the open connections exactly those break that entered at another node than their owner.
func TestTakeOverFromKubeProxy(t *testing.T) {
	r := newRig(t, 0, 1, 0)
	r.apply(0, 1)
	for i := range r.nodes {
		r.loadKubeProxyRules(i)
		r.recordEntries(i)
	}
	r.masquerade = true
	f := r.flows(200, lab.TCP, vip4)
	entered := r.entries(f)
	ways := []lab.Way{
		{From: r.lab.Outside, To: web()},
		{From: r.lab.Outside, To: netip.AddrPortFrom(netip.MustParseAddr(vip6), 80)},
	}
	connecting := lab.StartConnecting(t, time.Millisecond, ways...)
	for _, node := range []int{2, 0, 1} {
		connecting.Await(300)
		r.start(node)
		r.must(r.daemons[node].Until(timeout, "the take-over", func() error {
			if tables := r.nodes[node].MustRun("nft", "list", "tables"); strings.Contains(tables, "kube-proxy") ||
				!strings.Contains(tables, "netdev sluice-direct") {
				return fmt.Errorf("node %d has %s", node, tables)
			}
			return nil
		}))
		connecting.Await(300)
		t.Logf("node %d is taken over: %d of %d flows are broken", node, f.round(), len(f.open))
	}
	r.agree("", 0, 1, 2)
	connecting.Await(300)
	if err := connecting.End(); err != nil {
		t.Error(err)
	}
	if n := connecting.Resets(); n > len(ways)*len(r.nodes)*(len(r.nodes)-1) {
		t.Errorf("%d new connections were reset, want one at most on each way when a node begins to pass on to another", n)
	}
	t.Logf("%s, of which %d were reset", connecting, connecting.Resets())
	f.round()
	f.stop()
	f.wait.Wait()
	want := map[int]bool{}
	for i := range f.open {
		if r.owner(f, i) != entered[i] {
			want[i] = true
		}
	}
	if diff := cmp.Diff(want, f.ended); diff != "" {
		t.Errorf("other flows broke than those that entered at another node than their owner (-want +got):\n%s", diff)
	}
	t.Logf("%d of %d flows broke, which entered at another node than their owner", len(want), len(f.open))
	r.masquerade = false
	r.flows(100, lab.TCP, vip4).survive("all nodes are taken over")
}

// loadKubeProxyRules loads rules that a real kube-proxy has written, with the addresses of this Service. Its pods have
// the same addresses.
func (r *rig) loadKubeProxyRules(node int) {
	r.Helper()
	addresses := strings.NewReplacer("203.0.113.90", vip4, "2001:db8:113::90", vip6)
	for _, family := range []string{"ip4", "ip6"} {
		rules, err := os.ReadFile(filepath.Join("../takeover/testdata", "nftables-"+family+".nft"))
		r.must(err)
		r.nodes[node].Nft(addresses.Replace(string(rules)))
	}
}

// recordEntries makes a node record the source ports of connections that enter there.
func (r *rig) recordEntries(node int) {
	r.Helper()
	r.nodes[node].Nft(fmt.Sprintf(`table inet entries {
		set ports { type inet_service; size 65535; flags dynamic; }
		chain prerouting {
			type filter hook prerouting priority raw
			ip daddr %s tcp flags & (syn | ack) == syn add @ports { tcp sport }
		}
	}`, vip4))
}

var number = regexp.MustCompile(`\d+`)

// entries returns the index of the node at which each flow has entered.
func (r *rig) entries(f *flows) []int {
	r.Helper()
	nodes := map[string]int{}
	for i, n := range r.nodes {
		_, ports, _ := strings.Cut(n.MustRun("nft", "list", "set", "inet", "entries", "ports"), "elements")
		for _, port := range number.FindAllString(ports, -1) {
			nodes[port] = i
		}
		n.Nft("delete table inet entries")
	}
	var out []int
	for i := range f.open {
		node, known := nodes[strconv.Itoa(int(f.locals[i].Port()))]
		if !known {
			r.Fatalf("flow %d from %s has entered at no node", i, f.locals[i])
		}
		out = append(out, node)
	}
	return out
}

// owner returns the index of the node that owns a flow: it serves a UDP flow from the same port with its own pods.
func (r *rig) owner(f *flows, i int) (node int) {
	r.Helper()
	res := r.lab.Outside.Try(lab.Probe{Protocol: lab.UDP, To: web(), From: f.locals[i]})
	if res.Outcome != lab.Answered || res.Masqueraded() {
		r.Fatalf("a UDP flow from %s: %s", f.locals[i], res)
	}
	return r.at[res.Backend.Addr()]
}
