package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// header has the fields that a backend reads from a PROXY header.
type header struct {
	client, to netip.AddrPort
	rest       string
	err        error
}

// Backends get a PROXY header before the bytes of the client, even if the client sends none.
func TestProxyHeaderToBackend(t *testing.T) {
	both(t, Options{}, func(b *bench) {
		for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
			headers := make(chan header, 1)
			target := one(b.backend(func(c *net.TCPConn) {
				got, _ := io.ReadAll(c)
				var h header
				var rest []byte
				h.client, h.to, rest, h.err = parseProxyHeader(got)
				h.rest = string(rest)
				headers <- h
				_ = c.Close()
			}))
			target.ProxyHeader = true
			balancer := NewBalancer(target)
			l, err := b.engine.Listen(Spec{Protocol: TCP, Addr: netip.MustParseAddrPort(at), Balancer: balancer})
			if err != nil {
				t.Fatal(err)
			}
			for _, sent := range []string{"hello", ""} {
				c := b.dial(l.Addr())
				_, _ = c.Write([]byte(sent))
				_ = c.CloseWrite()
				want := header{client: address(c.LocalAddr()), to: l.Addr(), rest: sent}
				if got := <-headers; got != want {
					t.Errorf("the backend received %+v, want %+v", got, want)
				}
			}
			b.eventually("ended", func() bool { return balancer.Counts().Open == 0 })
			if n := balancer.Counts().Received; n != int64(len("hello")) {
				t.Errorf("%d bytes counted from clients", n)
			}
		}
	})
}

// A refused connection is admitted because of the address to which the client connected, even if rules have changed
// that address.
func TestAdmittedByDestination(t *testing.T) {
	run(t, Options{NetNS: kerneltest.Namespace(t)}, newSystem, func(b *bench) {
		asked := make(chan netip.AddrPort, 2)
		service := netip.MustParseAddrPort("127.0.0.80:80")
		l, err := b.engine.Listen(Spec{
			Protocol: TCP, Addr: netip.MustParseAddrPort("127.0.0.1:0"), Balancer: NewBalancer(one(b.echo())),
			Admit: func(netip.Addr) Admission {
				return Admission{Refused: true, Unless: func(to netip.AddrPort) bool {
					asked <- to
					return to == service
				}}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		nat(t, b.ns, service, l.Addr())
		if _, err := b.outcome(l.Addr()); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client of the socket itself: %v, want a reset", err)
		}
		if _, err := b.outcome(service); err != nil {
			t.Errorf("a client that rules led to the socket: %v", err)
		}
		for _, want := range []netip.AddrPort{l.Addr(), service} {
			if got := <-asked; got != want {
				t.Errorf("asked about %v, want %v", got, want)
			}
		}
	})
}

// nat leads connections of a namespace to a destination elsewhere.
func nat(t *testing.T, ns int, from, to netip.AddrPort) {
	t.Helper()
	rules := fmt.Sprintf("table ip nat { chain output { type nat hook output priority -100; "+
		"ip daddr %s tcp dport %d dnat to %s; }; }",
		from.Addr(), from.Port(), to)
	kerneltest.Do(t, ns, func() error {
		if out, err := exec.Command("nft", rules).CombinedOutput(); err != nil {
			t.Fatalf("nft: %v: %s", err, out)
		}
		return nil
	})
}

// The Engine of the next run adopts a listening socket. A client that connects in between is served by it.
func TestAListenerIsAdopted(t *testing.T) {
	ns := kerneltest.Namespace(t)
	for name, protocol := range map[string]Protocol{"tcp": TCP, "udp": UDP} {
		t.Run(name, func(t *testing.T) { testAdoption(t, ns, protocol, name) })
	}
}

func testAdoption(t *testing.T, ns int, protocol Protocol, network string) {
	t.Helper()
	var file *os.File
	var at netip.AddrPort
	run(t, Options{NetNS: ns}, newSystem, func(b *bench) {
		l, err := b.engine.Listen(Spec{
			Protocol: protocol, Addr: netip.MustParseAddrPort("127.0.0.1:0"), Balancer: NewBalancer(&Target{}),
		})
		if err != nil {
			t.Fatal(err)
		}
		at = l.Addr()
		if file, err = l.File(); err != nil {
			t.Fatal(err)
		}
	})
	var c net.Conn
	kerneltest.Do(t, ns, func() (err error) {
		c, err = net.Dial(network, at.String())
		return err
	})
	defer func() { _ = c.Close() }()
	_, _ = c.Write([]byte("hello"))
	run(t, Options{NetNS: ns}, newSystem, func(b *bench) {
		backend := b.echo()
		if protocol == UDP {
			_, backend = echoUDP(t, ns, "b", "127.0.0.1:0")
		}
		l, err := b.engine.Listen(Spec{Protocol: protocol, Addr: at, Balancer: NewBalancer(one(backend)), Inherited: file})
		if err != nil {
			t.Fatal(err)
		}
		if l.Addr() != at {
			t.Errorf("the listener is at %s, want %s", l.Addr(), at)
		}
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		got := make([]byte, 100)
		if n, err := c.Read(got); err != nil || !strings.HasSuffix(string(got[:n]), "hello") {
			t.Errorf("the client received %q, %v", got[:max(n, 0)], err)
		}
	})
}

// When all ports to a backend are in use, new clients are reset and counted, and open connections continue.
func TestNoPorts(t *testing.T) {
	ns := kerneltest.Namespace(t)
	run(t, Options{NetNS: ns}, newSystem, func(b *bench) {
		echo := b.echo()
		l, _ := b.front(one(echo))
		first, err := b.outcome(l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		kerneltest.Do(t, ns, func() error { // clients bind before, as they need ports too
			return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("60000 60003"), 0o644)
		})
		served, refused := 0, 0
		for port := range 10 {
			kerneltest.Do(t, ns, func() error {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40000 + port}}
				c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
				if err == nil {
					t.Cleanup(func() { _ = c.Close() })
					_, err = c.Write([]byte("x"))
				}
				if err == nil {
					_, err = io.ReadFull(c, make([]byte, 1))
				}
				if err == nil {
					served++
					return nil
				}
				refused++
				if !errors.Is(err, syscall.ECONNRESET) {
					return err
				}
				return nil
			})
		}
		if n := b.engine.Stats().Refused[reasonPorts]; served < 1 || refused < 1 || n != int64(refused) {
			t.Errorf("%d served, %d refused, %d counted", served, refused, n)
		}
		_, _ = first.Write([]byte("x"))
		if _, err := io.ReadFull(first, make([]byte, 1)); err != nil {
			t.Errorf("a connection that was open: %v", err)
		}
	})
}

// Without pipes much data is copied, and nothing is lost when the client is slow.
func TestWithoutPipes(t *testing.T) {
	noPipes := func(e *Engine) (system, error) {
		s, err := newSystem(e)
		for _, w := range s.(*poller).workers {
			w.tcp.pipeLimit = 0
		}
		return s, err
	}
	run(t, Options{NetNS: kerneltest.Namespace(t)}, noPipes, func(b *bench) {
		sent := random(7, 20<<20)
		l, balancer := b.front(one(b.backend(func(c *net.TCPConn) {
			_, _ = c.Write(sent)
			_ = c.Close()
		})))
		c := b.dial(l.Addr())
		last := int64(-1)
		b.eventually("blocked", func() bool {
			before := last
			last = balancer.Counts().Sent
			time.Sleep(50 * time.Millisecond)
			return last == before
		})
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("received %d bytes, %v; want %d", len(got), err, len(sent))
		}
	})
}
