//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/test/lab"
)

// setOn sets a kernel parameter of a host to 1.
func setOn(t testing.TB, h *lab.Host, key string) {
	t.Helper()
	if err := sysctl.New(sysctl.Options{NetNS: h.NetNSFD()}).Set(key, "1"); err != nil {
		t.Fatalf("%v", err)
	}
}

// routeLocalnet is the parameter that lets packets from and to loopback addresses be routed (ip-sysctl.rst).
const routeLocalnet = "net/ipv4/conf/all/route_localnet"

// routeLocalnetIs verifies the value of route_localnet on node A.
func routeLocalnetIs(want string) step {
	return func(e *env) error {
		got, err := sysctl.New(sysctl.Options{NetNS: e.lab.NodeA.NetNSFD()}).Get(routeLocalnet)
		if err == nil && got != want {
			err = fmt.Errorf("route_localnet is %s, want %s", got, want)
		}
		return err
	}
}

// enableFirewall makes the firewall of node A drop all incoming and forwarded packets unless a
// rule accepts them, except for ICMPv6 and the loopback interface.
func enableFirewall(e *env) error {
	e.alters("a firewall on node A")
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

// filtered verifies that a firewall of another program drops a client's packets. It asks
// explain nothing, which does not know such rules.
func filtered(from, to string) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		probe.Timeout = lab.Soon
		if r := client.Try(probe); r.Outcome != lab.TimedOut {
			return fmt.Errorf("%s to %s: %s, want it filtered", from, to, r)
		}
		return nil
	}
}

// invalidSegment returns a segment with SYN and FIN, which conntrack classifies as INVALID even if it is liberal.
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

// invalidPasses verifies that node A forwards a packet to the outside that belongs to no connection and begins none.
func invalidPasses(from, to string) step {
	return func(e *env) error {
		n, err := e.countInvalid(from, to)
		if err == nil && n == 0 {
			err = fmt.Errorf("an invalid packet from %s to %s was dropped", from, to)
		}
		return err
	}
}

// invalidDropped verifies that node A drops such a packet.
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
	// A UDP packet takes the same path, so it arrives after the invalid packet, if that is forwarded.
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

// whileLocked holds the xtables lock during the steps. The proxy may wait for it, so explain is not checked.
func whileLocked(steps ...step) step {
	return func(e *env) error {
		lock, err := os.OpenFile(lockOf(e.lab.NodeA), os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return fmt.Errorf("open lock: %w", err)
		}
		defer func() { _ = lock.Close() }() // releases the lock
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		e.proxy.skipExplain = true
		return sequence(steps...)(e)
	}
}

// lockAwaited waits until a program waits for the xtables lock. Such a line of /proc/locks is
// "1: -> FLOCK ADVISORY WRITE 52 00:1a:7 0 EOF".
func lockAwaited(e *env) error {
	var file unix.Stat_t
	if err := unix.Stat(lockOf(e.lab.NodeA), &file); err != nil {
		return fmt.Errorf("find lock: %w", err)
	}
	id := fmt.Sprintf("%02x:%02x:%d", unix.Major(file.Dev), unix.Minor(file.Dev), file.Ino)
	return eventually(changeTimeout, func() error {
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			return fmt.Errorf("list locks: %w", err)
		}
		for line := range strings.Lines(string(locks)) {
			if words := strings.Fields(line); slices.Contains(words, "->") && slices.Contains(words, id) {
				return nil
			}
		}
		return fmt.Errorf("no program waits for the lock %s", id)
	})
}

// settle waits until all changes made by changeNoWait are in the kernel.
func settle(e *env) error { return e.proxy.settle() }
