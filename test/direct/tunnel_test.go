//go:build linux

package direct

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/direct/layer2"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

const port = 10264 // of the tunnel

// distant puts a node behind the router, for the others and back, with strict reverse path filters.
func (r *rig) distant(node int) {
	r.Helper()
	far := r.nodes[node]
	for _, i := range others(node) {
		near := r.nodes[i]
		for _, a := range []netip.Addr{far.Addr4(), far.Addr6()} {
			router := "192.168.0.1"
			if a.Is6() {
				router = "2001:db8::fe"
			}
			near.MustRun("ip", "route", "replace", a.String(), "via", router, "dev", "eth0", "onlink")
			far.MustRun("ip", "route", "replace", near.Addr(a).String(), "via", router, "dev", "eth0", "onlink")
		}
	}
	far.MustRun("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
}

// openTunnels makes daemons open the tunnel.
func (r *rig) openTunnels() {
	for i := range r.flags {
		r.flags[i] = append(r.flags[i], fmt.Sprintf("--direct-tunnel-port=%d", port))
	}
}

// Through the tunnel a distant node is the owner of connections like others, gets packets of any size, and finds those
// of slots that have moved.
func TestConnectionsSurviveBehindARouter(t *testing.T) {
	r := newRig(t, 0, 1, 2)
	r.distant(2)
	r.openTunnels()
	sum := r.begin(0, 2)
	var all []*flows
	for _, vip := range []string{vip4, vip6} {
		all = append(all, r.flows(60, lab.TCP, vip), r.flows(20, lab.UDP, vip))
	}
	r.enterAt(0, 1)
	for _, f := range all {
		f.survive("the router leaves out the distant node")
	}
	all = []*flows{all[0], all[2]} // without UDP
	r.apply(0, 1)                  // the distant node drains
	sum = r.agree(sum, 0, 1, 2)
	for _, f := range all {
		f.survive("the distant node drains")
	}
	r.apply(0, 1, 2)
	r.agree(sum, 0, 1, 2)
	r.enterAt(2)
	for _, f := range all {
		f.survive("all enter at the distant node")
	}
	r.enterAt(1)
	large := bytes.Repeat([]byte("x"), 20_000)
	for _, f := range all {
		f.stop()
		f.wait.Wait()
		for i, flow := range f.open {
			if res := flow.AskWithin(large, 10*time.Second); !res.Echoed || res.Backend != f.backends[i] {
				t.Errorf("20,000 bytes to %s: %s", f.backends[i], res)
			}
		}
	}
	r.refuseStrangers()
}

// refuseStrangers verifies that a node takes packets of the tunnel from nodes alone.
func (r *rig) refuseStrangers() {
	r.Helper()
	const packets = 100
	inside := append([]byte{8, 0, 0, 0, 0, 0x28, 0x18, 0}, make([]byte, 60)...) // RFC 7348, section 5, with network 10264
	received := func() int { return r.receivedAt(r.nodes[2], layer2.TunnelName) }
	before := received()
	for _, from := range []*lab.Host{r.lab.Outside, r.nodes[0]} {
		r.must(from.Do(func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(r.nodes[2].Addr4(), port).String())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }() // all was sent
			for range packets {
				if _, err := c.Write(inside); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	harness.Eventually(r, timeout, func() error {
		if n := received() - before; n < packets {
			return fmt.Errorf("%d of %d packets of a node arrived", n, packets)
		}
		return nil
	})
	if n := received() - before; n > packets*3/2 {
		r.Errorf("%d packets came through the tunnel, want the %d of a node", n, packets)
	}
}
