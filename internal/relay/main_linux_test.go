package relay

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) {
	if role := kerneltest.Role(); role != "" {
		if err := roles()[role](); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	lab.RaisePriority()
	os.Exit(kerneltest.Main(m))
}

// bench is an Engine in a network namespace, with clients and backends there.
type bench struct {
	*testing.T
	ns     int
	engine *Engine
}

// both runs a test with each implementation.
func both(t *testing.T, o Options, test func(b *bench)) {
	t.Run("epoll", func(t *testing.T) {
		o := o
		o.NetNS = kerneltest.Namespace(t)
		run(t, o, newSystem, test)
	})
	t.Run("portable", func(t *testing.T) {
		o := o
		o.NetNS = kerneltest.Namespace(t)
		run(t, o, portableSystem, test)
	})
}

func run(t *testing.T, o Options, system func(*Engine) (system, error), test func(b *bench)) {
	t.Helper()
	e, err := newEngine(o, system)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	test(&bench{T: t, ns: o.NetNS, engine: e})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if s := e.Stats(); s.Connections != 0 {
		t.Errorf("%d connections are open after Run", s.Connections)
	}
	if n := len(e.hops.from); n != 0 {
		t.Errorf("%d sockets to backends are known after Run", n)
	}
}

// listen opens a listener of a backend.
func (b *bench) listen(at string) *net.TCPListener {
	b.Helper()
	var l net.Listener
	kerneltest.Do(b, b.ns, func() (err error) {
		l, err = net.Listen("tcp", at) //nolint:noctx // it is closed with the test
		return err
	})
	b.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener)
}

// backend starts a backend that handles connections.
func (b *bench) backend(handle func(c *net.TCPConn)) netip.AddrPort {
	b.Helper()
	l := b.listen("127.0.0.1:0")
	kerneltest.Serve(b, l, func(c net.Conn) { handle(c.(*net.TCPConn)) })
	return address(l.Addr())
}

func address(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

// refusing returns an address that refuses connections.
func (b *bench) refusing() netip.AddrPort {
	b.Helper()
	l := b.listen("127.0.0.1:0")
	_ = l.Close()
	return address(l.Addr())
}

// silent returns an address that does not answer: its queue is full.
func (b *bench) silent() netip.AddrPort {
	b.Helper()
	var fd int
	var at netip.AddrPort
	kerneltest.Do(b, b.ns, func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return err
		}
		if err := unix.Listen(fd, 0); err != nil {
			return err
		}
		s, err := unix.Getsockname(fd)
		at = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(s.(*unix.SockaddrInet4).Port))
		return err
	})
	b.Cleanup(func() { _ = unix.Close(fd) })
	for {
		c, err := b.try(at, time.Second/4)
		if err != nil {
			return at
		}
		b.Cleanup(func() { _ = c.Close() })
	}
}

// one returns a target with one pool.
func one(backends ...netip.AddrPort) *Target {
	t := &Target{Pools: [][]Backend{nil}}
	for _, addr := range backends {
		t.Pools[0] = append(t.Pools[0], Backend{Addr: addr, Weight: 1})
	}
	return t
}

// front opens a Listener.
func (b *bench) front(t *Target) (*Listener, *Balancer) {
	b.Helper()
	balancer := NewBalancer(&Target{})
	balancer.random = func() float64 { return 0 }
	balancer.Set(t)
	l, err := b.engine.Listen(Spec{Protocol: TCP, Addr: netip.MustParseAddrPort("127.0.0.1:0"), Balancer: balancer})
	if err != nil {
		b.Fatal(err)
	}
	return l, balancer
}

// try connects a client.
func (b *bench) try(to netip.AddrPort, timeout time.Duration) (*net.TCPConn, error) {
	var c net.Conn
	err := netns.Do(b.ns, func() (err error) {
		c, err = net.DialTimeout("tcp", to.String(), timeout) //nolint:noctx // it has a timeout
		return err
	})
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// dial connects a client, with a deadline.
func (b *bench) dial(to netip.AddrPort) *net.TCPConn {
	b.Helper()
	const timeout = 30 * time.Second
	c, err := b.try(to, timeout)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		b.Fatal(err)
	}
	return c
}

// patience is for a machine that is busy.
const patience = 30 * time.Second

// outcome connects a client, which sends a byte and receives one. It returns the first error.
func (b *bench) outcome(to netip.AddrPort) (*net.TCPConn, error) {
	b.Helper()
	return b.outcomeWithin(to, patience)
}

// outcomeWithin is outcome with a time limit.
func (b *bench) outcomeWithin(to netip.AddrPort, timeout time.Duration) (*net.TCPConn, error) {
	b.Helper()
	c, err := b.try(to, timeout)
	if err != nil {
		return nil, err
	}
	b.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write([]byte("x")); err != nil {
		return c, err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return c, err
}

// eventually waits until a condition holds.
func (b *bench) eventually(what string, condition func() bool) {
	b.Helper()
	const limit, pause = 30 * time.Second, time.Millisecond
	for end := time.Now().Add(limit); !condition(); time.Sleep(pause) {
		if time.Now().After(end) {
			b.Fatalf("after %v: not %s", limit, what)
		}
	}
}
