//go:build linux

package direct

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/direct"
	"github.com/sluice-proxy/sluice/test/harness"
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

// With session affinity, fragmented datagrams reach the same pod as others, wherever they enter. A flag makes
// the Service direct.
func TestFragments(t *testing.T) {
	r := newRig(t, 0, 1)
	r.spec, r.annotation = object{"sessionAffinity": "ClientIP"}, ""
	for i := range r.flags {
		r.flags[i] = []string{"--external=direct"}
	}
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

// A client cannot multiply ICMP errors about connections that no node has, while nodes disagree about owners.
func TestForgedErrorsDoNotMultiply(t *testing.T) {
	r := newRig(t, 0, 1, 2)
	r.disagree()
	const packets = 300
	before := r.received()
	for i := range packets {
		r.forgeError(netip.AddrPortFrom(netip.MustParseAddr("203.0.113.77"), uint16(1024+i)))
	}
	harness.Eventually(r, timeout, func() error {
		if n := r.received() - before; n < packets*3/2 {
			return fmt.Errorf("nodes have received %d packets for %d", n, packets)
		}
		return nil
	})
	r.flows(1, lab.TCP, vip4).survive("after errors") // most of what nodes pass on has arrived
	if n := r.received() - before; n > packets*(2+direct.MaxPasses)+packets/2 {
		t.Errorf("nodes receive %d packets for %d", n, packets)
	}
}

// forgeError sends an ICMP error of type "fragmentation needed" about a packet to a client.
func (r *rig) forgeError(client netip.AddrPort) {
	r.Helper()
	vip, from := netip.MustParseAddr(vip4).As4(), client.Addr().As4()
	message := []byte{3, 4, 0, 0, 0, 0, 5, 20, 0x45, 0, 5, 220, 0, 0, 0x40, 0, 60, unix.IPPROTO_TCP, 0, 0}
	message = append(append(message, vip[:]...), from[:]...)
	message = binary.BigEndian.AppendUint16(append(message, 0, 80), client.Port())
	message = append(message, 0, 0, 0, 9)
	binary.BigEndian.PutUint16(message[2:], harness.Checksum(message))
	r.must(r.lab.Outside.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // all was sent
		return unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Addr: vip})
	}))
}
