//go:build linux

package direct

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// remote returns a client behind a link with a small MTU, of which neither end knows. The router before that link sends
// its ICMP errors through the router of the rig.
func (r *rig) remote() *lab.Host {
	r.Helper()
	edge := r.lab.Node("edge", "192.168.0.9", "2001:db8::9")
	client := r.lab.Pod(edge, "203.0.113.200", "2001:db8:113::200")
	for _, router := range []string{"192.168.0.1", "2001:db8::fe"} {
		edge.MustRun("ip", "route", "replace", "default", "via", router, "dev", "eth0", "onlink")
	}
	for i, a := range client.Addrs() {
		ip := []string{"ip -4", "ip -6"}[i]
		edge.MustRun("sh", "-ec", ip+" route replace $("+ip+" route show "+a.String()+") mtu 1300")
	}
	return client
}

// With session affinity, fragmented datagrams reach the same pod as others, wherever they enter.
func TestFragments(t *testing.T) {
	r := newRig(t, 0, 1)
	r.affinity = true
	r.begin(0, 1)
	for _, client := range []*lab.Host{r.lab.Outside, r.lab.Blocked} {
		for _, vip := range []string{vip4, vip6} {
			probe := lab.Probe{Protocol: lab.UDP, To: netip.AddrPortFrom(netip.MustParseAddr(vip), 80)}
			var want netip.AddrPort
			for node := range r.nodes {
				r.enterAt(node)
				for _, size := range []int{10, 5000} {
					probe.Payload = make([]byte, size)
					res := client.Try(probe)
					if want == (netip.AddrPort{}) {
						want = res.Backend
					}
					if res.Outcome != lab.Answered || !res.Echoed || res.Backend != want || res.Masqueraded() {
						t.Fatalf("%d bytes to %s by node %d: %s, want %s", size, vip, node, res, want)
					}
				}
			}
		}
	}
}

// Path MTU discovery works, whichever node the ICMP errors reach, also after the slots of connections have moved.
func TestPathMTUDiscovery(t *testing.T) {
	r := newRig(t, 0, 1, 2)
	sum := r.begin(0, 1)
	client := r.remote()
	var all []*lab.Flow
	for i := range 20 {
		to := netip.AddrPortFrom(netip.MustParseAddr([]string{vip4, vip6}[i%2]), 80)
		flow, res := client.Open(lab.Probe{Protocol: lab.TCP, To: to})
		if flow == nil {
			t.Fatalf("flow %d to %s: %s", i, to, res)
		}
		t.Cleanup(flow.Close)
		all = append(all, flow)
	}
	big := []byte(strings.Repeat("x", 10_000))
	survive := func(what string) {
		for node := range r.nodes {
			r.enterAt(node)
			for i, flow := range all {
				for _, pod := range r.pods { // what connections before have learned
					pod.MustRun("sh", "-ec", "ip -4 route flush cache; ip -6 route flush cache")
				}
				if res := flow.Ask(big); res.Outcome != lab.Answered || !res.Echoed {
					t.Fatalf("%s, errors reach node %d: flow %d: %s", what, node, i, res)
				}
			}
		}
	}
	survive("at first")
	r.apply(0, 1, 2)
	sum = r.agree(sum, 0, 1, 2)
	survive("pods come up on node C")
	r.apply(2)
	r.agree(sum, 0, 1, 2)
	survive("the other pods drain")
}
