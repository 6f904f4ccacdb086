//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/sysctl"
	"github.com/sluice-proxy/sluice/test/lab"
)

// setOn sets a parameter of a host's kernel to 1.
func setOn(t testing.TB, h *lab.Host, key string) {
	t.Helper()
	if err := sysctl.New(sysctl.Options{NetNS: h.NetNSFD()}).Set(key, "1"); err != nil {
		t.Fatalf("%v", err)
	}
}

// routeLocalnet lets loopback addresses be routed (ip-sysctl.rst).
const routeLocalnet = "net/ipv4/conf/all/route_localnet"

// routeLocalnetIs has node A's kernel route packets from loopback addresses, "1", or not.
func routeLocalnetIs(want string) step {
	return func(e *env) error {
		got, err := sysctl.New(sysctl.Options{NetNS: e.lab.NodeA.NetNSFD()}).Get(routeLocalnet)
		if err == nil && got != want {
			err = fmt.Errorf("route_localnet is %s, want %s", got, want)
		}
		return err
	}
}

// enableFirewall has node A's own firewall drop what comes in or is forwarded, unless a
// rule accepts it. Neighbours still find each other, and it talks to itself.
func enableFirewall(e *env) error {
	rules := e.traits().firewall
	for _, args := range [][]string{
		{"-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT"},
		{"-A", "INPUT", "-i", "lo", "-j", "ACCEPT"},
		{"-P", "INPUT", "DROP"},
		{"-P", "FORWARD", "DROP"},
	} {
		if err := rules.runBoth(e.lab.NodeA, args...); err != nil {
			return err
		}
	}
	return nil
}

// filtered has nobody answer, because of others than the proxy, of whom explain
// knows nothing.
func filtered(from, to string) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		probe.Timeout = lab.Soon
		if r := client.Try(probe); r.Outcome != lab.TimedOut {
			return fmt.Errorf("%s to %s: %s, want it kept out", from, to, r)
		}
		return nil
	}
}

// invalidSegment is a segment that opens and ends a connection, which conntrack takes
// for INVALID, whatever it lets pass besides.
func (e *env) invalidSegment(from, to string) (src *lab.Host, s lab.Segment, err error) {
	if src, err = e.host(from); err != nil {
		return nil, s, err
	}
	dst, _, err := e.target(to)
	s = lab.Segment{
		Protocol: lab.TCP, Flags: lab.SYN | lab.FIN,
		Src: netip.AddrPortFrom(src.Addr(dst.Addr()), 4000), Dst: dst,
	}
	return src, s, err
}

// invalidPasses has a packet from a pod of node A to the outside arrive that
// belongs to no connection and begins none.
func invalidPasses(from, to string) step {
	return func(e *env) error {
		n, err := e.countInvalid(from, to)
		if err == nil && n == 0 {
			err = fmt.Errorf("an invalid packet from %s to %s was dropped", from, to)
		}
		return err
	}
}

// invalidDropped has it not arrive.
func invalidDropped(from, to string) step {
	return func(e *env) error {
		n, err := e.countInvalid(from, to)
		if err == nil && n != 0 {
			err = fmt.Errorf("an invalid packet from %s to %s was forwarded", from, to)
		}
		return err
	}
}

func (e *env) countInvalid(from, to string) (int, error) {
	src, s, err := e.invalidSegment(from, to)
	if err != nil {
		return 0, err
	}
	tap := e.outsideTap()
	tap.Reset()
	src.Inject(e.lab.NodeA, s.Packet())
	// The way of a UDP packet is the same, so it comes out after the other, if that does.
	last := lab.Segment{Protocol: lab.UDP, Src: s.Src, Dst: s.Dst}
	src.Inject(e.lab.NodeA, last.Packet())
	err = eventually(changeTimeout, func() error {
		if tap.Count(isIncoming(lab.Probe{Protocol: lab.UDP, To: s.Dst})) == 0 {
			return fmt.Errorf("a UDP packet from %s to %s does not arrive", from, to)
		}
		return nil
	})
	return tap.Count(isIncoming(lab.Probe{Protocol: lab.TCP, To: s.Dst})), err
}

// whileLocked has another program hold the lock of iptables during the steps.
// The proxy may wait for it, and so cannot be asked to explain.
func whileLocked(steps ...step) step {
	return func(e *env) error {
		lock, err := os.OpenFile(lockOf(e.lab.NodeA), os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return fmt.Errorf("open lock: %w", err)
		}
		defer func() { _ = lock.Close() }() // which unlocks
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		e.proxy.skipExplain = true
		return sequence(steps...)(e)
	}
}

// settle waits until what was changed unseen is in the kernel.
func settle(e *env) error { return e.proxy.settle() }
