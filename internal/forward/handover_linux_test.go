package forward

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/test/machine"
)

// successor is an Engine that has adopted what another one handed over.
type successor struct {
	*bench
	listener *Listener
	balancer *Balancer
}

// handOver makes another Engine go on with everything of an Engine, as the next run of the program does:
// all that it knows is text. Meanwhile is called while no Engine has the sockets.
func (b *bench) handOver(o Options, s Spec, meanwhile func()) *successor {
	b.Helper()
	handed, err := b.engine.HandOver(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if n := b.engine.Stats(); n.Connections != 0 || n.Flows != 0 {
		b.Errorf("%+v remain", n)
	}
	var open, closed *Handed
	for l, h := range handed {
		text, err := json.Marshal(h)
		if err != nil {
			b.Fatal(err)
		}
		again := &Handed{}
		if err := json.Unmarshal(text, again); err != nil {
			b.Fatal(err)
		}
		if l == nil {
			closed = again
		} else {
			open = again
		}
	}
	meanwhile()
	o.NetNS = b.ns
	e, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	next := &successor{bench: &bench{T: b.T, ns: b.ns, engine: e}, balancer: s.Balancer}
	if open != nil {
		s.Inherited = os.NewFile(uintptr(open.Socket), "inherited")
		if next.listener, err = e.Listen(s); err != nil {
			b.Fatal(err)
		}
		next.listener.Adopt(open)
	}
	if closed != nil {
		e.Drain(s.Balancer, closed)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		if n := e.Stats(); n.Connections != 0 || n.Flows != 0 {
			b.Errorf("%+v remain after the end", n)
		}
	})
	return next
}

// echoed sends a text to an echo.
func echoed(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, _ = c.Write([]byte(text))
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); string(got) != text || err != nil {
		t.Errorf("received %q, %v; want %q", got, err, text)
	}
}

func nothing() {}

// Connections go on in the next run, those of clients that connect meanwhile included, and what arrives
// meanwhile is not lost.
func TestConnectionsOutliveTheEngine(t *testing.T) {
	run(t, Options{NetNS: kerneltest.Namespace(t)}, newSystem, func(b *bench) {
		target := one(b.echo(), b.echo())
		l, balancer := b.front(target)
		var clients []*net.TCPConn
		for range 20 {
			c := b.dial(l.Addr())
			echoed(t, c, "before")
			clients = append(clients, c)
		}
		target.Scheduler = LeastConnections
		next := b.handOver(Options{}, Spec{Protocol: TCP, Addr: l.Addr(), Balancer: NewBalancer(target)}, func() {
			for i, c := range clients {
				if i%2 == 0 {
					_, _ = c.Write([]byte("meanwhile "))
				}
			}
			c := b.dial(l.Addr())
			_, _ = c.Write([]byte("meanwhile "))
			clients = append(clients, c)
		})
		for i, c := range clients {
			if i%2 == 0 {
				echoed(t, c, "") // the echo of meanwhile comes first
				got := make([]byte, len("meanwhile "))
				if _, err := io.ReadFull(c, got); err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			}
			echoed(t, c, "after")
		}
		if n := next.balancer.Counts(); n.Open != 21 || n.Connections != 1 || balancer.Counts().Open != 0 {
			t.Errorf("counted %+v, and %+v before", n, balancer.Counts())
		}
		if open := next.balancer.Open(); open[target.Pools[0][0].Addr] < 10 || open[target.Pools[0][1].Addr] < 10 {
			t.Errorf("connections by backend: %v", open)
		}
		for _, c := range clients {
			_ = c.Close()
		}
		next.eventually("all ended", func() bool { return next.balancer.Counts().Open == 0 })
	})
}

// A direction that has ended, bytes that wait in a pipe or in memory, and resets survive.
func TestHalfConnectionsOutliveTheEngine(t *testing.T) {
	for name, pipes := range map[string]int{"pipes": maxPipes, "memory": 0} {
		t.Run(name, func(t *testing.T) {
			limited := func(e *Engine) (system, error) {
				s, err := newSystem(e)
				for _, w := range s.(*poller).workers {
					w.tcp.pipeLimit = pipes
				}
				return s, err
			}
			run(t, Options{NetNS: kerneltest.Namespace(t)}, limited, func(b *bench) {
				down, up := random(1, 20<<20), make(chan []byte, 1)
				proceed := make(chan struct{})
				target := one(b.backend(func(c *net.TCPConn) {
					got, _ := io.ReadAll(c) // the end of the client's direction arrives before the reply
					up <- got
					<-proceed
					_, _ = c.Write(down)
					_ = c.Close()
				}))
				l, balancer := b.front(target)
				half, slow, gone := b.dial(l.Addr()), b.dial(l.Addr()), b.dial(l.Addr())
				_, _ = half.Write([]byte("hello"))
				_ = half.CloseWrite()
				if got := <-up; string(got) != "hello" {
					t.Errorf("the backend received %q", got)
				}
				_ = slow.CloseWrite()
				<-up
				_, _ = gone.Write([]byte("x"))
				b.eventually("all connected", func() bool { return balancer.Counts().Received == 6 })
				proceed <- struct{}{} // to half or slow: both have many bytes on their way, and nobody reads
				last := int64(-1)
				b.eventually("blocked", func() bool {
					before := last
					last = balancer.Counts().Sent
					time.Sleep(50 * time.Millisecond)
					return last == before && last > 0
				})
				next := b.handOver(Options{}, Spec{Protocol: TCP, Addr: l.Addr(), Balancer: NewBalancer(target)}, func() {
					_ = gone.SetLinger(0)
					_ = gone.Close()
				})
				proceed <- struct{}{}
				for name, c := range map[string]*net.TCPConn{"half": half, "slow": slow} {
					got, err := io.ReadAll(c)
					if err != nil || !bytes.Equal(got, down) {
						t.Errorf("%s: received %d bytes, %v; want %d", name, len(got), err, len(down))
					}
				}
				next.eventually("all ended", func() bool { return next.balancer.Counts().Open == 0 })
				close(proceed)
			})
		})
	}
}

// A connection that has no backend yet gets one from the next run.
func TestAnUnansweredConnectionOutlivesTheEngine(t *testing.T) {
	run(t, Options{NetNS: kerneltest.Namespace(t), Attempts: []time.Duration{time.Minute}}, newSystem, func(b *bench) {
		l, balancer := b.front(one(b.silent()))
		c := b.dial(l.Addr())
		_, _ = c.Write([]byte("hello"))
		b.eventually("accepted", func() bool { return balancer.Counts().Open == 1 })
		b.handOver(Options{}, Spec{Protocol: TCP, Addr: l.Addr(), Balancer: NewBalancer(one(b.echo()))}, nothing)
		echoed(t, c, "")
		got := make([]byte, len("hello"))
		if _, err := io.ReadFull(c, got); string(got) != "hello" || err != nil {
			t.Errorf("received %q, %v", got, err)
		}
	})
}

// Connections to a backend that has left, and those of a closed listener, end when they would have ended.
func TestDrainingConnectionsOutliveTheEngine(t *testing.T) {
	drain := machine.Scale(1500 * time.Millisecond)
	for _, name := range []string{"backend left before", "backend left with the handover", "closed listener"} {
		t.Run(name, func(t *testing.T) {
			run(t, Options{NetNS: kerneltest.Namespace(t), Drain: drain}, newSystem, func(b *bench) {
				l, balancer := b.front(one(b.echo()))
				c := b.dial(l.Addr())
				echoed(t, c, "before")
				begin := time.Now()
				switch name {
				case "backend left before":
					balancer.Set(one(b.echo()))
				case "closed listener":
					l.Close()
				}
				time.Sleep(drain / 3)
				if name == "backend left with the handover" {
					begin = time.Now()
				}
				next := b.handOver(Options{Drain: drain}, Spec{Protocol: TCP, Addr: l.Addr(), Balancer: NewBalancer(one(b.echo()))}, nothing)
				echoed(t, c, "after")
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the connection ends with %v, want a reset", err)
				}
				if took := time.Since(begin); took < drain-50*time.Millisecond || took > drain+drain/4 {
					t.Errorf("it has ended after %v, want %v", took, drain)
				}
				next.eventually("ended", func() bool { return next.balancer.Counts().Open == 0 })
			})
		})
	}
}

// A UDP flow keeps its backend and the address from which that knows it. A reply that arrives meanwhile is not
// lost, and an idle flow ends.
func TestFlowsOutliveTheEngine(t *testing.T) {
	timeout := machine.Scale(time.Second)
	for _, family := range []string{"127.0.0.1:0", "[::1]:0"} {
		ns := kerneltest.Namespace(t)
		var backend *net.UDPConn
		kerneltest.Do(t, ns, func() (err error) {
			backend, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(family)))
			return err
		})
		defer func() { _ = backend.Close() }()
		_, other := echoUDP(t, ns, "other", family)
		to := backend.LocalAddr().(*net.UDPAddr).AddrPort()
		r := epollUDP(t, ns, Options{UDPTimeout: timeout}, Spec{Addr: netip.MustParseAddrPort(family), Balancer: NewBalancer(pools(to))})
		c := dialUDP(t, ns, r.at)
		_, _ = c.Write([]byte("one"))
		buffer := make([]byte, 10)
		_, from, err := backend.ReadFromUDPAddrPort(buffer)
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{T: t, ns: ns, engine: r.Engine}
		balancer := NewBalancer(pools(other, to))
		next := b.handOver(Options{UDPTimeout: timeout}, Spec{Protocol: UDP, Addr: r.at, Balancer: balancer}, func() {
			_, _ = backend.WriteToUDPAddrPort([]byte("late"), from)
			_, _ = c.Write([]byte("two"))
		})
		if got, err := answer(c); got != "late" || err != nil {
			t.Errorf("received %q, %v", got, err)
		}
		n, again, err := backend.ReadFromUDPAddrPort(buffer)
		if string(buffer[:n]) != "two" || again != from || err != nil {
			t.Errorf("the backend received %q from %v, %v; want the same source %v", buffer[:n], again, err, from)
		}
		if s := next.engine.Stats(); s.Flows != 1 || balancer.Counts().Connections != 0 {
			t.Errorf("%+v, %+v", s, balancer.Counts())
		}
		next.eventually("idle", func() bool { return next.engine.Stats().Flows == 0 })
		if p := next.engine.system.(*poller).hosts.ports; len(p.used)+len(p.taken) != 0 {
			t.Errorf("%d ports remain", len(p.used))
		}
		balancer.Set(pools(other))
		want(t, c, "three", "other:three")
	}
}

// After a handover a new flow displaces one that is idle, although there are others that were used just before.
func TestIdleFlowsEndAfterTheHandover(t *testing.T) {
	const limit = 100
	o := Options{UDPTimeout: 16 * time.Second, MaxFlows: limit} // a flow is idle after a second
	ns := kerneltest.Namespace(t)
	_, to := echoUDP(t, ns, "backend", "127.0.0.1:0")
	r := epollUDP(t, ns, o, Spec{Addr: anyAddr, Balancer: NewBalancer(pools(to))})
	client := newSwarm(t, ns, "127.0.0.1", r)
	for i := range limit {
		if i == limit/2 {
			time.Sleep(o.UDPTimeout/idleFraction + 100*time.Millisecond) // the first half is idle then
		}
		client.send(i)
	}
	b := &bench{T: t, ns: ns, engine: r.Engine}
	b.eventually("open", func() bool { return r.Stats().Flows == limit })
	next := b.handOver(o, Spec{Protocol: UDP, Addr: r.at, Balancer: NewBalancer(pools(to))}, nothing)
	b.eventually("adopted", func() bool { return next.engine.Stats().Flows == limit })
	const more = 10
	for i := range more {
		client.send(limit + i)
	}
	b.eventually("begun", func() bool {
		return next.balancer.Counts().Connections+next.engine.Stats().Refused[reasonFlows] == more
	})
	if n := next.engine.Stats().Refused[reasonFlows]; n > 0 {
		t.Errorf("%d of %d flows were refused", n, more)
	}
}

// Descriptors of connections that are not adopted can be closed.
func TestDescriptors(t *testing.T) {
	run(t, Options{NetNS: kerneltest.Namespace(t)}, newSystem, func(b *bench) {
		l, _ := b.front(one(b.echo()))
		c := b.dial(l.Addr())
		echoed(t, c, "before")
		handed, err := b.engine.HandOver(t.Context())
		if err != nil || handed[l] == nil {
			t.Fatalf("%v, %v", handed, err)
		}
		fds := handed[l].Descriptors()
		if len(fds) != 3 {
			t.Errorf("descriptors %v, want those of the listener, the client and the backend", fds)
		}
		for _, fd := range fds {
			if err := unix.Close(fd); err != nil {
				t.Errorf("close %d: %v", fd, err)
			}
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the connection is still open")
		}
		if _, err := b.try(l.Addr(), 30*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a client gets %v", err)
		}
		if _, err := b.engine.Listen(Spec{Protocol: TCP, Addr: loopback, Balancer: NewBalancer(&Target{})}); !errors.Is(err, errEnded) {
			t.Errorf("listen: %v", err)
		}
	})
}

// A connection with too many bytes that were not written is reset; others are handed over.
func TestTooManyPendingBytes(t *testing.T) {
	run(t, Options{NetNS: kerneltest.Namespace(t)}, newSystem, func(b *bench) {
		l, balancer := b.front(one(b.echo()))
		clients := []*net.TCPConn{b.dial(l.Addr()), b.dial(l.Addr()), b.dial(l.Addr())}
		for _, c := range clients {
			echoed(t, c, "hello")
		}
		var mu sync.Mutex
		all, room, first := &Handed{}, 0, true
		if err := b.engine.system.(*poller).each(t.Context(), func(w *worker) {
			mu.Lock()
			defer mu.Unlock()
			for m := range w.members {
				if first && !m.conns.Empty() {
					m.conns.Next.Item.up.pending, first = []byte("x"), false
				}
				m.handOver(all, &room)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if len(all.Conns) != 2 || balancer.Counts().Open != 0 {
			t.Errorf("%d of 3 connections are handed over, %+v", len(all.Conns), balancer.Counts())
		}
		for _, c := range all.Conns {
			_, _ = unix.Close(c.Client), unix.Close(c.Remote)
		}
		_ = unix.Close(all.Socket)
	})
}
