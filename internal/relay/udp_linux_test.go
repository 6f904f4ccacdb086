package relay

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/machine"
)

// Each client stays on its backend; clients are spread. Datagrams of any size pass.
func TestUDPFlows(t *testing.T) {
	each(t, func(t *testing.T, start func(*testing.T, int, Options, Spec) *udpRig) {
		ns := kerneltest.Namespace(t)
		_, a := echoUDP(t, ns, "a", "127.0.0.1:0")
		_, b := echoUDP(t, ns, "b", "[::1]:0") // the family of the client does not matter
		balancer := NewBalancer(pools(a, b))
		r := start(t, ns, Options{}, Spec{Addr: loopback, Balancer: balancer})
		seen := map[string]int{}
		for range 10 {
			c := dialUDP(t, ns, r.at)
			first, err := ask(c, "x")
			if err != nil {
				t.Fatal(err)
			}
			seen[first]++
			for range 5 {
				want(t, c, "x", first)
			}
		}
		if seen["a:x"] != 5 || seen["b:x"] != 5 {
			t.Errorf("answers %v, want 5 of each backend", seen)
		}
		c := dialUDP(t, ns, r.at)
		for _, size := range []int{0, 1, 1472, 9000, 65507} {
			data := strings.Repeat("0", size)
			got, err := ask(c, data)
			if got = strings.TrimLeft(got, "ab:"); err != nil || got != data {
				t.Errorf("a datagram of %d bytes is answered with %d: %v", size, len(got), err)
			}
		}
		if got := balancer.Counts(); got.Open != 11 || got.Connections != 11 || got.Received != 60+1+1472+9000+65507 {
			t.Errorf("counts %+v", got)
		}
	})
}

// A flow ends when no datagram has passed in either direction for the timeout.
func TestUDPTimeout(t *testing.T) {
	each(t, func(t *testing.T, start func(*testing.T, int, Options, Spec) *udpRig) {
		t.Parallel()
		ns := kerneltest.Namespace(t)
		_, a := echoUDP(t, ns, "a", "127.0.0.1:0")
		balancer := NewBalancer(pools(a))
		timeout := machine.Scale(300 * time.Millisecond)
		r := start(t, ns, Options{UDPTimeout: timeout}, Spec{Addr: loopback, Balancer: balancer})
		c := dialUDP(t, ns, r.at)
		last := time.Now()
		for range 5 { // longer than the timeout
			last = time.Now()
			want(t, c, "x", "a:x")
			time.Sleep(timeout / 3)
		}
		if got := balancer.Counts(); got.Connections != 1 || got.Open != 1 {
			t.Errorf("counts %+v, want one flow that is in use", got)
		}
		eventually(t, "open", 0, func() int64 { return balancer.Counts().Open })
		if idle := time.Since(last); idle < timeout || idle > 2*timeout {
			t.Errorf("the flow ended after %v, want %v", idle, timeout)
		}
		want(t, c, "x", "a:x")
	})
}

// A backend that refuses is left for the next one; the client learns of the datagram that was lost.
func TestUDPRefusal(t *testing.T) {
	each(t, func(t *testing.T, start func(*testing.T, int, Options, Spec) *udpRig) {
		ns := kerneltest.Namespace(t)
		closed, dead := echoUDP(t, ns, "dead", "127.0.0.1:0")
		_ = closed.Close()
		conn, live := echoUDP(t, ns, "live", "127.0.0.1:0")
		balancer := NewBalancer(&Target{})
		balancer.random = func() float64 { return 0 }
		balancer.Set(pools(dead, live))
		r := start(t, ns, Options{}, Spec{Addr: loopback, Balancer: balancer})
		c := dialUDP(t, ns, r.at)
		if _, err := c.Write([]byte("lost")); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(t.Name(), "epoll") {
			if got, err := answer(c); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("answer %q, %v, want that the connection is refused", got, err)
			}
		} else {
			time.Sleep(50 * time.Millisecond)
		}
		want(t, c, "x", "live:x")
		if got := balancer.Counts(); got.Retries != 1 || got.Open != 1 || got.Connections != 1 || got.Failures != 0 {
			t.Errorf("counts %+v, want one flow and one retry", got)
		}
		// A flow that had replies stays, since its backend may come back.
		at := conn.LocalAddr().String()
		_ = conn.Close()
		_, _ = c.Write([]byte("lost"))
		if strings.HasSuffix(t.Name(), "epoll") {
			_, _ = answer(c) // the refusal
		} else {
			time.Sleep(50 * time.Millisecond)
		}
		echoUDP(t, ns, "again", at)
		want(t, c, "x", "again:x")
	})
}

// If all backends refuse, that counts as a failure, and the flow begins again with the first.
func TestUDPAllRefuse(t *testing.T) {
	each(t, func(t *testing.T, start func(*testing.T, int, Options, Spec) *udpRig) {
		ns := kerneltest.Namespace(t)
		dead := []netip.AddrPort{}
		for range 3 {
			closed, at := echoUDP(t, ns, "dead", "127.0.0.1:0")
			_ = closed.Close()
			dead = append(dead, at)
		}
		balancer := NewBalancer(&Target{})
		balancer.random = func() float64 { return 0 }
		balancer.Set(pools(dead...))
		r := start(t, ns, Options{}, Spec{Addr: loopback, Balancer: balancer})
		c := dialUDP(t, ns, r.at)
		for range 100 {
			if balancer.Counts().Failures > 0 {
				break
			}
			_, _ = c.Write([]byte("x"))
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			_, _ = c.Read(make([]byte, 9)) // the refusal, which would be the result of the next Write
		}
		if got := balancer.Counts(); got.Failures != 1 || got.Retries != 2 || got.Open != 1 {
			t.Errorf("counts %+v, want 2 retries and 1 failure", got)
		}
		echoUDP(t, ns, "back", dead[0].String())
		eventually(t, "answers", 1, func() int64 {
			_, _ = c.Write([]byte("x"))
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			n, _ := c.Read(make([]byte, 9))
			return int64(min(n, 1))
		})
	})
}

// Without a backend, and without admission, datagrams go nowhere.
func TestUDPNotAdmitted(t *testing.T) {
	each(t, func(t *testing.T, start func(*testing.T, int, Options, Spec) *udpRig) {
		ns := kerneltest.Namespace(t)
		_, a := echoUDP(t, ns, "a", "127.0.0.1:0")
		balancer := NewBalancer(&Target{Pools: [][]Backend{{}, {{Addr: a, Weight: 1}}}})
		stranger := netip.MustParseAddr("127.0.0.9")
		r := start(t, ns, Options{}, Spec{Addr: loopback, Balancer: balancer, Admit: func(client netip.Addr) Admission {
			return Admission{Refused: client == stranger, Pool: 1}
		}})
		admitted := dialUDP(t, ns, r.at)
		want(t, admitted, "x", "a:x")
		var c *net.UDPConn
		kerneltest.Do(t, ns, func() (err error) {
			c, err = net.DialUDP("udp", &net.UDPAddr{IP: stranger.AsSlice()}, net.UDPAddrFromAddrPort(r.at))
			return err
		})
		defer c.Close()
		_, _ = c.Write([]byte("x"))
		want(t, admitted, "y", "a:y") // after the datagram of the stranger
		r.Set(balancer, nil)          // pool 0 has no backend
		c = dialUDP(t, ns, r.at)
		_, _ = c.Write([]byte("x"))
		eventually(t, "failures", 1, func() int64 { return balancer.Counts().Failures })
		if got := balancer.Counts(); got.Open != 1 || got.Connections != 2 {
			t.Errorf("counts %+v, want one flow that is open, and one that failed", got)
		}
	})
}

// Flows to a backend that has left end, whether they are used or not.
func TestUDPBackendLeaves(t *testing.T) {
	each(t, func(t *testing.T, start func(*testing.T, int, Options, Spec) *udpRig) {
		ns := kerneltest.Namespace(t)
		_, a := echoUDP(t, ns, "a", "127.0.0.1:0")
		_, b := echoUDP(t, ns, "b", "127.0.0.1:0")
		balancer := NewBalancer(pools(a))
		r := start(t, ns, Options{UDPTimeout: machine.Scale(time.Second)}, Spec{Addr: loopback, Balancer: balancer})
		used, unused := dialUDP(t, ns, r.at), dialUDP(t, ns, r.at)
		want(t, used, "x", "a:x")
		want(t, unused, "x", "a:x")
		balancer.Set(pools(a, b))
		want(t, used, "x", "a:x")
		balancer.Set(pools(b))
		want(t, used, "x", "b:x")
		eventually(t, "open", 1, func() int64 { return balancer.Counts().Open })
		r.Set(balancer, func(netip.Addr) Admission { return Admission{Refused: true} })
		_, _ = used.Write([]byte("x"))
		eventually(t, "open", 0, func() int64 { return balancer.Counts().Open })
	})
}

// A closed listener has no flows.
func TestUDPClose(t *testing.T) {
	each(t, func(t *testing.T, start func(*testing.T, int, Options, Spec) *udpRig) {
		ns := kerneltest.Namespace(t)
		_, a := echoUDP(t, ns, "a", "127.0.0.1:0")
		balancer := NewBalancer(pools(a))
		r := start(t, ns, Options{}, Spec{Addr: loopback, Balancer: balancer})
		c := dialUDP(t, ns, r.at)
		want(t, c, "x", "a:x")
		r.Close()
		eventually(t, "open", 0, func() int64 { return balancer.Counts().Open })
		if got, err := ask(c, "x"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("answer %q, %v, want that the connection is refused", got, err)
		}
	})
}
