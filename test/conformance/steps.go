//go:build linux

package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// step is one action of a scenario, or one check of the connections of clients. The error describes the difference.
type step func(*env) error

// source is the client address that a backend sees.
type source uint8

const (
	anySource   source = iota
	original           // the client's own address
	masqueraded        // an address of node A
)

// reach verifies that exactly the given backends answer a client: it connects so often that each of them must have
// answered. To is "172.30.0.41:80" (TCP) or "172.30.0.41:53/udp"; for the names of clients see env.host.
func reach(from, to string, seen source, backends ...string) step {
	return func(e *env) error {
		want, err := e.backends(backends)
		if err != nil {
			return err
		}
		return e.balance(balance{from: from, to: to, seen: seen, want: want, n: lab.Samples(len(want))})
	}
}

// evenly is reach with n connections, and each backend must get a share that is likely for a uniform distribution.
func evenly(n int, from, to string, backends ...string) step {
	return func(e *env) error {
		want, err := e.backends(backends)
		if err != nil {
			return err
		}
		return e.balance(balance{from: from, to: to, want: want, n: n, even: true})
	}
}

// sticky verifies that all connections of a client reach the same one of the backends.
func sticky(from, to string, backends ...string) step {
	return func(e *env) error {
		want, err := e.backends(backends)
		if err != nil {
			return err
		}
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		var first lab.Result
		for n := range lab.Samples(len(want)) {
			r := client.Try(probe)
			if r.Outcome != lab.Answered || !slices.Contains(want, r.Backend) {
				return fmt.Errorf("%s to %s: %s, want an answer of one of %s", from, to, r, want)
			}
			if n == 0 {
				first = r
			}
			if r.Backend != first.Backend {
				return fmt.Errorf("%s to %s: %s after %s, want one backend for one client", from, to, r.Backend, first.Backend)
			}
		}
		return e.checkExplain(client, probe, observation{
			verdict: explain.Balanced, results: []lab.Result{first}, sticky: true,
		})
	}
}

// large connects once for each size, and verifies that so many bytes reach the backend and come back.
func large(from, to, backend string, sizes ...int) step {
	return func(e *env) error {
		want, err := e.backends([]string{backend})
		if err != nil {
			return err
		}
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		for _, size := range sizes {
			probe.Payload = slices.Repeat([]byte("0123456789abcdef"), size/16)
			r := client.Try(probe)
			if r.Outcome != lab.Answered || r.Backend != want[0] || !r.Echoed {
				return fmt.Errorf("%d bytes from %s to %s: %s (whole: %t), want %s", size, from, to, r, r.Echoed, want[0])
			}
		}
		return e.checkExplain(client, probe, observation{verdict: explain.Balanced, backends: want})
	}
}

// refused verifies that each connection of a client is refused at once.
func refused(from, to string) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		want, n := e.traits().refusal(probe.Protocol), 3
		if want == lab.Reset {
			n = 10 // more than the kernel sends ICMP errors to a client at once
		}
		for i := range n {
			r := client.Try(alternately(probe, i))
			if r.Outcome != want || r.Took > time.Second {
				return fmt.Errorf("%s to %s: %s after %v, want %s at once", from, to, r, r.Took, want)
			}
		}
		return e.checkExplain(client, probe, observation{verdict: explain.Refused})
	}
}

// dropped verifies that a client gets no answer, and that no packet leaves node A for the outside.
func dropped(from, to string) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		tap := e.outsideTap()
		tap.Reset()
		probe.Timeout = lab.Soon
		if r := client.Try(probe); r.Outcome != lab.TimedOut {
			return fmt.Errorf("%s to %s: %s, want silence", from, to, r)
		}
		if n := tap.Count(isIncoming(probe)); n > 0 && !e.onNodeB(client) {
			return fmt.Errorf("%s to %s: left the node, want it dropped", from, to)
		}
		return e.checkExplain(client, probe, observation{verdict: explain.Dropped})
	}
}

// untouched verifies that the proxy does not handle the connection: if the address is one of
// node A, it reaches a server there, and if not, it leaves node A unchanged.
func untouched(from, to string) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		if e.isLocalToNodeA(probe.To.Addr()) {
			s := e.lab.NodeA.Serve(probe.Protocol, probe.To.Port())
			defer s.Close()
			return e.balance(balance{from: from, to: to, want: []netip.AddrPort{probe.To}, n: lab.Samples(1)})
		}
		tap := e.outsideTap()
		tap.Reset()
		probe.Timeout = lab.Soon
		if r := client.Try(probe); r.Outcome != lab.TimedOut {
			return fmt.Errorf("%s to %s: %s, want it to leave the node", from, to, r)
		}
		if !e.arrives(tap, isIncoming(probe)) {
			return fmt.Errorf("%s to %s: did not leave the node", from, to)
		}
		return e.checkExplain(client, probe, observation{verdict: explain.Untouched})
	}
}

// pingRefused verifies that an ICMP echo is answered by port unreachable.
func pingRefused(from, to string) step {
	return func(e *env) error {
		client, err := e.host(from)
		if err != nil {
			return err
		}
		addr := netip.MustParseAddr(e.text(to))
		if r := client.Ping(addr); r.Outcome != lab.Refused {
			return fmt.Errorf("ping from %s to %s: %s, want refused", from, to, r)
		}
		return e.checkExplain(client, lab.Probe{To: netip.AddrPortFrom(addr, 0)},
			observation{verdict: explain.Refused, pings: true})
	}
}

// pingAnswered verifies that an ICMP echo is answered.
func pingAnswered(from, to string) step {
	return func(e *env) error {
		client, err := e.host(from)
		if err != nil {
			return err
		}
		addr := netip.MustParseAddr(e.text(to))
		if r := client.Ping(addr); r.Outcome != lab.Answered {
			return fmt.Errorf("ping from %s to %s: %s, want an answer", from, to, r)
		}
		return e.checkExplain(client, lab.Probe{To: netip.AddrPortFrom(addr, 0)},
			observation{verdict: explain.Untouched, pings: true})
	}
}

// arrives waits for a packet and reports whether it came in time.
func (e *env) arrives(tap *lab.Tap, wanted func(lab.Packet) bool) bool {
	return eventually(e.timeout, func() error {
		if tap.Count(wanted) == 0 {
			return errors.New("no such packet")
		}
		return nil
	}) == nil
}

// pingUntouched verifies that an ICMP echo leaves node A unchanged.
func pingUntouched(from, to string) step {
	return func(e *env) error {
		client, err := e.host(from)
		if err != nil {
			return err
		}
		addr := netip.MustParseAddr(e.text(to))
		tap := e.outsideTap()
		tap.Reset()
		r := client.Try(lab.Probe{Protocol: lab.Echo, To: netip.AddrPortFrom(addr, 0), Timeout: lab.Soon})
		if r.Outcome != lab.TimedOut {
			return fmt.Errorf("ping from %s to %s: %s, want it to leave the node", from, to, r)
		}
		if !e.arrives(tap, func(p lab.Packet) bool { return !p.Out && p.Dst.Addr() == addr }) {
			return fmt.Errorf("ping from %s to %s: did not leave the node", from, to)
		}
		return e.checkExplain(client, lab.Probe{To: netip.AddrPortFrom(addr, 0)},
			observation{verdict: explain.Untouched, pings: true})
	}
}

// apply adds and replaces objects, and waits until the change is in the kernel.
func apply(docs ...string) step {
	return func(e *env) error {
		return errors.Join(e.change(e.texts(docs), nil), e.proxy.settle())
	}
}

// remove deletes objects, "Service/web" or "EndpointSlice/web", and waits until the change is in the kernel.
func remove(keys ...string) step {
	return func(e *env) error {
		return errors.Join(e.change(nil, keys), e.proxy.settle())
	}
}

// soon retries a step until it succeeds, for at most the time that a change may take. It is for
// effects that no event reports; apply and remove wait by themselves.
func soon(s step) step {
	return func(e *env) error {
		return eventually(e.timeout, func() error { return s(e) })
	}
}

// eventually calls try until it returns no error, and returns the last error when the time is
// over. The pause grows, because an attempt may start programs: in a guest of test/uml, where
// the clock stops while any process runs, a short pause would mean thousands of attempts.
func eventually(timeout time.Duration, try func() error) error {
	pause := time.Millisecond
	for deadline := time.Now().Add(timeout); ; time.Sleep(pause) {
		if err := try(); err == nil || time.Now().After(deadline) {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// beyondTimers waits for longer than any timer of the proxy after which it still acts on a change.
func beyondTimers(*env) error {
	time.Sleep(3 * time.Second)
	return nil
}

// longestPause bounds the pause between two attempts of eventually.
const longestPause = 100 * time.Millisecond

// addAddress gives node A an address that the others can reach. No event reports when the proxy
// has detected it: follow it with soon.
func addAddress(addr string) step {
	return func(e *env) error {
		e.alters("another address of node A")
		a := netip.MustParseAddr(e.text(addr))
		e.lab.NodeA.AddAddr(a)
		e.nodeAddrs = append(e.nodeAddrs, a)
		return nil
	}
}

// stopProxy stops the proxy. Its rules stay.
func stopProxy(e *env) error {
	e.proxy.stop()
	return nil
}

// stopForNext stops the proxy as a restart does. One that forwards connections itself hands its listening sockets
// over to the next run, as it does when its configuration changes.
func stopForNext(e *env) error {
	if reload := e.proxy.plane.Reload; reload != nil {
		reload(e.proxy.host)
	}
	return stopProxy(e)
}

// whileStopped runs steps with a plane that serves while the proxy is stopped.
func whileStopped(steps ...step) step { return when(inUserspaceMode).otherwise(steps...) }

// startProxy starts the proxy again, and waits until the objects are in the kernel.
func startProxy(e *env) error {
	clear(e.found) // if the programs were removed
	return e.proxy.start(e.objects)
}

// addRoute makes a host send packets for a prefix to another host.
func addRoute(from, prefix, next string) step {
	return func(e *env) error {
		h, err := e.host(from)
		if err != nil {
			return err
		}
		h.Route(netip.MustParsePrefix(e.text(prefix)), netip.MustParseAddr(e.text(next)))
		return nil
	}
}
