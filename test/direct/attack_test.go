//go:build linux

package direct

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/direct"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// forgerAddr is the address of forged packets.
func forgerAddr() netip.Addr { return netip.MustParseAddr("203.0.113.77") }

// Two nodes that believe each other to be the owner of all slots pass a packet on once each, and not in a circle.
func TestNodesThatDisagreeAreNoLoop(t *testing.T) {
	r := newRig(t, 0, 1)
	sum := r.begin(1)
	r.masquerade = true
	r.signal(0, syscall.SIGSTOP) // believes in node B
	r.apply(0)
	r.agree(sum, 1, 2) // believe in node A
	const packets = 200
	for node := range 2 {
		r.enterAt(node)
		for _, flags := range []byte{ack, syn, ack} {
			most := 2 + direct.MaxPasses
			if flags == syn {
				most = 2
			}
			tap := r.tap() // the second ones are within a connection, out of its window
			for i := range packets {
				r.forge(netip.AddrPortFrom(forgerAddr(), uint16(1024+i)), web().Addr(), flags, 64)
			}
			n := tap.received(forgerAddr(), packets)
			t.Logf("%d packets with flags %#x at node %d: nodes receive %d", packets, flags, node, n)
			if n > packets*most {
				t.Errorf("%d packets with flags %#x at node %d: nodes receive %d", packets, flags, node, n)
			}
		}
	}
}

// A neighbour that uses the hardware address of a node gains nothing: its packets are served where they arrive, and the
// connections of others go on once the node has sent a packet again.
func TestHardwareAddressOfANode(t *testing.T) {
	r := newRig(t, 0, 1, 2)
	r.begin(0, 1, 2)
	f := r.flows(50, lab.TCP, vip4)
	neighbour, a, b := r.neighbour(), r.mac(r.nodes[0], "eth0"), r.mac(r.nodes[1], "eth0")
	const packets = 300
	tap := r.tap()
	var syns [][]byte
	for i := range packets {
		syns = append(syns, forged(netip.AddrPortFrom(forgerAddr(), uint16(1024+i)), web().Addr(), syn, 64))
	}
	r.frames(neighbour, [2]net.HardwareAddr{b, a}, unix.ETH_P_IP, syns...)
	if res := r.nodes[1].Ping(netip.MustParseAddr("192.168.0.1")); res.Outcome != lab.Answered { // the switch learns it
		t.Fatal(res)
	}
	if n := tap.received(forgerAddr(), packets); n != packets {
		t.Errorf("%d packets with the hardware address of a node: nodes receive %d", packets, n)
	}
	f.survive("a neighbour uses the hardware address of node B")
}

// A host that takes over the address of a node gets what is for that node, as of all traffic to it, and the daemon
// reports it. To one with the hardware address of the router nothing is passed on.
func TestPoisonedNeighbourTable(t *testing.T) {
	r := newRig(t, 0, 1)
	r.begin(0, 1)
	neighbour, a, b := r.neighbour(), r.nodes[0], r.nodes[1]
	// The entries of the lab are permanent; others have the state of one that was just verified.
	a.MustRun("ip", "neigh", "replace", b.Addr4().String(), "lladdr", r.mac(b, "eth0").String(), "dev", "eth0",
		"nud", "reachable")
	r.enterAt(0)
	r.flows(50, lab.TCP, vip4).survive("before")
	for _, macs := range [][2]net.HardwareAddr{
		{r.mac(b, "eth0"), r.mac(neighbour, "eth0")}, {r.mac(neighbour, "eth0"), r.mac(b, "eth0")},
	} {
		reported := fmt.Sprintf("peer=node-b from=%s to=%s", macs[0], macs[1])
		harness.Eventually(r, timeout, func() error {
			r.claim(neighbour, a, b.Addr4(), macs[1]) // the kernel believes no second reply within a second
			if len(r.daemons[0].Log.Lines(reported)) == 0 {
				return fmt.Errorf("the log of node A lacks %q", reported)
			}
			return nil
		})
	}
	r.flows(50, lab.TCP, vip4).survive("after")
	// The address of the router, too: nothing can be passed on to what may be a router.
	harness.Eventually(r, timeout, func() error {
		r.claim(neighbour, a, b.Addr4(), r.mac(r.lab.Outside, "br0"))
		_, err := r.checksum(0)
		if err == nil || !strings.Contains(err.Error(), "has the same hardware address") {
			return fmt.Errorf("got %w, want that two hosts have one hardware address", err)
		}
		return nil
	})
	r.masquerade = true
	r.flows(50, lab.TCP, vip4).survive("the address of the router")
}
