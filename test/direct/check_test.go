//go:build linux

package direct

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// switchPort returns the port of the switch to which a node is attached.
func (r *rig) switchPort(node int) (name string) {
	r.Helper()
	var index int
	r.must(r.nodes[node].Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			index = link.Attrs().ParentIndex
		}
		return err
	}))
	r.must(r.lab.Outside.Do(func() error {
		link, err := netlink.LinkByIndex(index)
		if err == nil {
			name = link.Attrs().Name
		}
		return err
	}))
	return name
}

// check makes the switch drop packets from or to a node (hook ingress or egress) whose source or destination (field) is
// neither its address nor one of a pod.
func (r *rig) check(node int, hook, field string) {
	r.Helper()
	n := r.nodes[node]
	rules := fmt.Sprintf(`table netdev cloud {
	chain check {
		type filter hook %s device %q priority 0
		ip %[3]s != { %[4]s, 10.180.0.0/16 } drop
		ip6 %[3]s != { %[5]s, fd00:10:180::/48, fe80::/10, ff02::/16 } drop
	}
}`, hook, r.switchPort(node), field, n.Addr4(), n.Addr6())
	r.lab.Outside.MustRun("nft", rules)
}

// report waits until nodes report the others whose probes fail, and have a checksum which is another than before.
func (r *rig) report(want [3]string, before string) (sum string) {
	r.Helper()
	harness.Eventually(r, timeout, func() error {
		var got [3]string
		sum = ""
		for i, n := range r.nodes {
			var s inspect.Status
			err := admin.Dial(admin.Options{NetNS: n.NetNSFD()}).Get(r.Context(), "/status", nil, &s)
			if err != nil {
				return err
			}
			var names []string
			for _, p := range s.Direct.Peers {
				if strings.Contains(p.Why, "foreign addresses") {
					names = append(names, p.Node+" "+p.Family)
				}
			}
			got[i] = strings.Join(names, ", ")
			if now := s.Direct.Checksum; now == before || sum != "" && sum != now {
				return fmt.Errorf("%s has checksum %s, before it was %s, and others have %s", n.Name(), now, before, sum)
			}
			sum = s.Direct.Checksum
		}
		if got != want {
			return fmt.Errorf("nodes do not reach %q, want %q", got, want)
		}
		return nil
	})
	return sum
}

// nodeB is what nodes report if node B does not answer, nor get answers.
func nodeB() [3]string {
	const b = "node-b IPv4, node-b IPv6"
	return [3]string{b, "node-a IPv4, node-a IPv6, node-c IPv4, node-c IPv6", b}
}

// serve opens flows and verifies which nodes have backends of them.
func (r *rig) serve(what string, want [3]bool) {
	r.Helper()
	for _, vip := range []string{vip4, vip6} {
		for _, protocol := range []lab.Protocol{lab.TCP, lab.UDP} {
			f := r.flows(40, protocol, vip)
			f.survive(what)
			f.end()
			var got [3]bool
			for _, b := range f.backends {
				got[r.at[b.Addr()]] = true
			}
			if got != want {
				r.Errorf("%s: protocol %d to %s: nodes with backends %v, want %v", what, protocol, vip, got, want)
			}
		}
	}
}

// In a network that drops packets with foreign sources or destinations of one node, the others pass connections on
// among themselves, and serve what only this node has as without the annotation, until the network does so no more.
func TestNetworksThatCheckAddresses(t *testing.T) {
	r := newRig(t, 0, 1, 2)
	sum := r.begin(0, 1, 2)
	r.enterAt(0, 2)
	for _, check := range [][2]string{{"ingress", "saddr"}, {"egress", "daddr"}} {
		r.serve("without checks", [3]bool{true, true, true})
		r.check(1, check[0], check[1])
		r.report(nodeB(), "")
		r.serve("check of "+check[1], [3]bool{true, false, true})
		r.apply(1)
		r.masquerade = true
		sum = r.report(nodeB(), sum)
		r.serve("check of "+check[1]+", and backends on the checked node alone", [3]bool{false, true, false})
		r.masquerade = false
		r.lab.Outside.MustRun("nft", "delete table netdev cloud")
		r.agree("", 0, 1, 2)
		r.serve("after the check, and backends on the checked node alone", [3]bool{false, true, false})
		r.apply(0, 1, 2)
		sum = r.agree(sum, 0, 1, 2)
	}
}

// Forged probes and answers of a host in the network of the nodes make no node reached that is not, are answered once
// if they have the hardware address of a node, and do not loop.
func TestForgedProbes(t *testing.T) {
	r := newRig(t, 0, 1, 2)
	r.begin(0, 1, 2)
	r.check(1, "ingress", "saddr")
	r.report(nodeB(), "")
	neighbour, a, b := r.neighbour(), r.mac(r.nodes[0], "eth0"), r.mac(r.nodes[1], "eth0")
	everyone := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	const packets = 100
	for _, c := range []struct {
		what    string
		ends    [2]net.HardwareAddr
		hops    byte
		in, out int // at all nodes
	}{
		{"of a neighbour", [2]net.HardwareAddr{r.mac(neighbour, "eth0"), a}, 64, packets, 0},
		{"of node B", [2]net.HardwareAddr{b, a}, 64, packets, packets},
		{"to all", [2]net.HardwareAddr{b, everyone}, 64, 3 * packets, 0},
		{"that are answers of node B", [2]net.HardwareAddr{b, a}, 1, packets, 0},
	} {
		tap := r.tap()
		var probes [][]byte
		for i := range packets {
			p := lab.Segment{Protocol: lab.UDP, Src: netip.AddrPortFrom(forgerAddr(), rtnl.ProbePort)}
			p.Dst = netip.AddrPortFrom(netip.MustParseAddr("192.0.0.7"), rtnl.ProbePort)
			p.Payload = append(make([]byte, 15), byte(i))
			packet := p.Packet()
			packet[8] = c.hops
			clear(packet[10:12])
			binary.BigEndian.PutUint16(packet[10:], harness.Checksum(packet[:20]))
			probes = append(probes, packet)
		}
		r.frames(neighbour, c.ends, unix.ETH_P_IP, probes...)
		in, out := tap.probes(c.in)
		if in != c.in || out != c.out {
			t.Errorf("%d probes %s: nodes receive %d and send %d, want %d and %d", packets, c.what, in, out, c.in, c.out)
		}
		r.report(nodeB(), "")
	}
}

// probes returns how many forged probes nodes have received and sent, once they have received so many.
func (t taps) probes(least int) (in, out int) {
	t.Helper()
	harness.Eventually(t, timeout, func() error {
		in, out = 0, 0
		for _, tap := range t.taps {
			for _, p := range tap.Packets() {
				switch {
				case p.Src.Addr() != forgerAddr():
				case p.Out:
					out++
				default:
					in++
				}
			}
		}
		if in < least {
			return fmt.Errorf("nodes have received %d forged probes, want %d", in, least)
		}
		return nil
	})
	return in, out
}
