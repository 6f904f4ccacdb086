package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// families are addresses of backends.
func families() map[string]string { return map[string]string{"IPv4": "127.0.0.1:0", "IPv6": "[::1]:0"} }

// firstPort is the first local port of sockets to backends in these tests. Clients have ports above.
const firstPort = 20000

// scarce returns a network namespace with few local ports, in which the kernel reuses none by itself.
func scarce(t *testing.T, ports int) int {
	t.Helper()
	ns := kerneltest.Namespace(t)
	set(t, ns, "ip_local_port_range", fmt.Sprintf("%d %d", firstPort, firstPort+ports-1))
	set(t, ns, "tcp_tw_reuse", "0")
	return ns
}

// set writes a kernel parameter of a network namespace.
func set(t *testing.T, ns int, name, value string) {
	t.Helper()
	kerneltest.Do(t, ns, func() error { return os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0o644) })
}

// caller opens connections of clients, each from a port of its own above the ports of sockets to backends.
type caller struct {
	*bench
	port int
}

// send connects the next client, with a deadline, and sends a request.
func (c *caller) send(to netip.AddrPort, request []byte) (*net.TCPConn, error) {
	const timeout, ports = 30 * time.Second, 1000
	c.port++
	var conn net.Conn
	err := netns.Do(c.ns, func() (err error) {
		at := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: firstPort + ports + c.port}
		d := net.Dialer{Timeout: timeout, LocalAddr: &at}
		conn, err = d.DialContext(c.Context(), "tcp", to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	c.Cleanup(func() { _ = conn.Close() })
	err = conn.SetDeadline(time.Now().Add(timeout))
	if err == nil {
		_, err = conn.Write(request)
	}
	return conn.(*net.TCPConn), err
}

// exchange sends a request, closes this direction, and returns the answer.
func (c *caller) exchange(to netip.AddrPort, request []byte) ([]byte, error) {
	conn, err := c.send(to, request)
	if err != nil {
		return nil, err
	}
	_ = conn.CloseWrite() // ReadAll has the error
	answer, err := io.ReadAll(conn)
	return answer, errors.Join(err, conn.Close())
}

// mirror serves a backend that reads a request to its end, answers with it and with more bytes, and closes the
// connection. A reset fails the test.
func (b *bench) mirror(at string, more []byte) netip.AddrPort {
	b.Helper()
	l := b.listen(at)
	kerneltest.Serve(b, l, func(c net.Conn) {
		defer func() { _ = c.Close() }()
		got, err := io.ReadAll(c)
		if err != nil {
			b.Errorf("the backend reads %d bytes, %v", len(got), err)
		}
		if _, err := c.Write(append(got, more...)); err != nil {
			b.Errorf("the backend writes: %v", err)
		}
	})
	return address(l.Addr())
}

// More clients than there are local ports close first. Each receives its whole answer after it closed its direction.
func TestClientsThatCloseFirst(t *testing.T) {
	for family, at := range families() {
		t.Run(family, func(t *testing.T) {
			const ports, clients = 300, 700
			run(t, Options{NetNS: scarce(t, ports)}, newSystem, func(b *bench) {
				more := random(1, 100_000)
				l, _ := b.front(one(b.mirror(at, more)))
				to := caller{bench: b}
				for i := range clients {
					request := random(byte(i), 100)
					got, err := to.exchange(l.Addr(), request)
					if want := append(request, more...); err != nil || !bytes.Equal(got, want) {
						t.Fatalf("client %d received %d bytes, %v, want %d", i, len(got), err, len(want))
					}
				}
				if n := b.engine.Stats().Refused[reasonPorts]; n != 0 {
					t.Errorf("%d refused", n)
				}
			})
		})
	}
}

// A backend that closes first keeps no local port, however many clients there are.
func TestBackendThatClosesFirst(t *testing.T) {
	for family, at := range families() {
		t.Run(family, func(t *testing.T) {
			const ports, clients = 100, 300
			run(t, Options{NetNS: scarce(t, ports)}, newSystem, func(b *bench) {
				sent := random(1, 50_000)
				l := b.listen(at)
				kerneltest.Serve(t, l, func(c net.Conn) { _, _ = c.Write(sent); _ = c.Close() })
				front, _ := b.front(one(address(l.Addr())))
				to := caller{bench: b}
				for i := range clients {
					c, err := to.send(front.Addr(), nil)
					if err != nil {
						t.Fatal(err)
					}
					if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
						t.Fatalf("client %d received %d bytes, %v, want %d", i, len(got), err, len(sent))
					}
					_ = c.Close()
				}
				if n := len(b.waiting().ports); n != 0 {
					t.Errorf("ports to %d backends are recorded", n)
				}
			})
		})
	}
}

// waiting returns the ports that the Engine has recorded.
func (b *bench) waiting() *waiting { return &b.engine.system.(*poller).waiting }

// When all ports to a backend are in use, clients get another backend. When no backend has a port, they are reset.
func TestAnotherBackendWithoutPorts(t *testing.T) {
	for family, at := range families() {
		t.Run(family, func(t *testing.T) {
			both(t, Options{}, func(b *bench) {
				const ports = 4
				full, other := b.named(at, "full"), b.named(at, "other")
				l, balancer := b.front(one(full))
				set(t, b.ns, "ip_local_port_range", fmt.Sprintf("%d %d", firstPort, firstPort+ports-1))
				to := caller{bench: b}
				for i := range 2 * ports {
					want := "full"
					if i == ports {
						balancer.Set(one(full, other))
					}
					if i >= ports {
						want = "other"
					}
					if got, err := to.ask(l.Addr()); got != want || err != nil {
						t.Errorf("client %d: answer of %q, %v, want %q", i, got, err, want)
					}
				}
				if _, err := to.ask(l.Addr()); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("without any port: %v, want a reset", err)
				}
				if n, retries := b.engine.Stats().Refused[reasonPorts], balancer.Counts().Retries; n != 1 || retries == 0 {
					t.Errorf("%d refused, want 1; %d retries, want some", n, retries)
				}
			})
		})
	}
}

// named serves a backend that answers a byte with its name, and keeps the connection.
func (b *bench) named(at, name string) netip.AddrPort {
	b.Helper()
	l := b.listen(at)
	kerneltest.Serve(b, l, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_, _ = c.Write([]byte(name))
	})
	return address(l.Addr())
}

// ask connects a client, which stays connected, sends a byte and returns the reply.
func (c *caller) ask(to netip.AddrPort) (string, error) {
	conn, err := c.send(to, []byte("x"))
	if err != nil {
		return "", err
	}
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

// Once many ports wait, the oldest is reused, although others are free.
func TestOldestPortIsReused(t *testing.T) {
	run(t, Options{NetNS: kerneltest.Namespace(t)}, newSystem, func(b *bench) {
		sources := make(chan uint16, 2)
		backend := b.backend(func(c *net.TCPConn) {
			sources <- address(c.RemoteAddr()).Port()
			_, _ = io.Copy(c, c)
			_ = c.Close()
		})
		l, _ := b.front(one(backend))
		connect := func() uint16 {
			c := b.dial(l.Addr())
			_ = c.CloseWrite()
			if _, err := io.ReadAll(c); err != nil {
				t.Fatal(err)
			}
			return <-sources
		}
		first := connect()
		for range manyWaiting {
			b.waiting().add(backend, netip.MustParseAddrPort("127.0.0.1:1"), time.Since(b.engine.start))
		}
		if again := connect(); again != first {
			t.Errorf("the second connection has port %d, want %d", again, first)
		}
	})
}

// Without timestamps a port cannot be reused in TIME_WAIT: clients are reset, and counted.
func TestPortsWithoutTimestamps(t *testing.T) {
	ns := scarce(t, 20)
	set(t, ns, "tcp_timestamps", "0")
	run(t, Options{NetNS: ns}, newSystem, func(b *bench) {
		l, _ := b.front(one(b.mirror("127.0.0.1:0", nil)))
		to := caller{bench: b}
		refused := int64(0)
		for range 40 {
			if _, err := to.exchange(l.Addr(), []byte("x")); errors.Is(err, syscall.ECONNRESET) {
				refused++
			}
		}
		if n := b.engine.Stats().Refused[reasonPorts]; n < 20 || n != refused {
			t.Errorf("%d clients were reset, %d counted as refused, want at least 20", refused, n)
		}
	})
}

// The ports to each backend are reused oldest first, and deleted after TIME_WAIT.
func TestWaitingPorts(t *testing.T) {
	var w waiting
	one, two := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("[2001:db8::1]:80")
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), port) }
	w.add(one, at(1), 0)
	w.add(one, at(2), time.Second)
	w.add(two, at(1), time.Second)
	w.add(one, at(3), 2*time.Second)
	for _, c := range []struct {
		backend netip.AddrPort
		keep    int
		now     time.Duration
		want    uint16 // 0: none
	}{
		{one, 3, 2 * time.Second, 0},
		{one, 2, 2 * time.Second, 1},
		{one, 2, 2 * time.Second, 0},
		{two, 0, 2 * time.Second, 1},
		{two, 0, 2 * time.Second, 0},
		{one, 0, timeWait + time.Second, 3}, // the TIME_WAIT of 2 has ended
		{one, 0, timeWait + time.Second, 0},
	} {
		if got, ok := w.take(c.backend, c.keep, c.now); ok != (c.want != 0) || ok && got != at(c.want) {
			t.Errorf("%+v: got %v, %t", c, got, ok)
		}
	}
	w.add(one, at(4), timeWait)
	w.add(two, at(5), 3*timeWait)
	if n := len(w.ports); n != 1 {
		t.Errorf("ports to %d backends are kept, want 1", n)
	}
	other := netip.MustParseAddrPort("192.0.2.10:6")
	w.add(two, other, 3*timeWait)
	if got, ok := w.take(two, 0, 3*timeWait); got != other || !ok {
		t.Errorf("got %v, %t after the local address has changed, want %v", got, ok, other)
	}
}
