package fair

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestSplit(t *testing.T) {
	for limit, want := range map[int]Budget{
		0:         {Health: 4, Metrics: 2, Control: 2, PortClients: 2, Ports: 2},
		64:        {Health: 8, Metrics: 4, Control: 4, PortClients: 4, Ports: 4},
		256:       {Health: 72, Metrics: 36, Control: 32, PortClients: 36, Ports: 40},
		1024:      {Health: 256, Metrics: 64, Control: 32, PortClients: 164, Ports: 468},
		1_048_576: {Health: 256, Metrics: 64, Control: 32, PortClients: 256, Ports: 1_047_928},
	} {
		if got := Split(limit); got != want {
			t.Errorf("Split(%d) = %+v, want %+v", limit, got, want)
		}
	}
	for limit := 64; limit < 5000; limit++ {
		b := Split(limit)
		if sum := b.Health + b.Metrics + b.Control + b.PortClients + b.Ports; sum > limit-reserve {
			t.Fatalf("of %d file descriptors %d are divided, want %d to be left", limit, sum, reserve)
		}
	}
}

// end is one end of a connection between two addresses, in memory.
type end struct {
	net.Conn
	remote, local string
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func (e end) RemoteAddr() net.Addr { return address(e.remote) }
func (e end) LocalAddr() net.Addr  { return address(e.local) }

// testServer is a server at 192.0.2.1 with clients, in fake time.
type testServer struct {
	t       *testing.T
	limiter *Limiter
	full    int
}

func start(t *testing.T, most int, test func(*testServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &testServer{t: t}
		w.limiter = NewLimiter(LimiterOptions{Max: most, Full: func() { w.full++ }})
		test(w)
	})
}

// pair has both ends of a connection.
type pair struct{ server, client net.Conn }

// connect opens a connection from an address, and lets a short time pass.
func (w *testServer) connect(from string) pair {
	w.t.Helper()
	client, server := net.Pipe()
	w.t.Cleanup(func() { _ = client.Close() })
	time.Sleep(time.Millisecond)
	return pair{w.limiter.Admit(end{server, from, "192.0.2.1:10256"}), client}
}

// gone reports whether the server has closed the connection.
func (w *testServer) gone(p pair) bool {
	w.t.Helper()
	_ = p.client.SetReadDeadline(time.Now().Add(time.Microsecond))
	_, err := p.client.Read(make([]byte, 1))
	if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.EOF) {
		w.t.Fatalf("read: %v", err)
	}
	return errors.Is(err, io.EOF)
}

func (w *testServer) expect(gone bool, pairs ...pair) {
	w.t.Helper()
	for i, p := range pairs {
		if got := w.gone(p); got != gone {
			w.t.Errorf("connection %d: closed is %t, want %t", i, got, gone)
		}
	}
}

func TestLongestIdleConnectionIsClosed(t *testing.T) {
	start(t, 3, func(w *testServer) {
		one, two, three := w.connect("10.0.0.1:1"), w.connect("10.0.0.1:2"), w.connect("10.0.0.1:3")
		w.expect(false, one, two, three)
		go func() { _, _ = one.client.Write([]byte("x")) }()
		time.Sleep(time.Millisecond)
		if _, err := one.server.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		four := w.connect("10.0.0.1:4")
		w.expect(true, two)
		w.expect(false, one, three, four)
		if n := w.limiter.Len(); n != 3 {
			t.Errorf("%d connections are open, want 3", n)
		}
		_ = one.server.Close()
		five := w.connect("10.0.0.1:5")
		w.expect(false, three, four, five)
	})
}

// A connection of the client with the most connections is closed.
func TestClientWithMostConnections(t *testing.T) {
	start(t, 4, func(w *testServer) {
		balancer := w.connect("10.0.0.9:1")
		w.connect("10.0.0.1:1")
		w.connect("10.0.0.1:2")
		w.connect("10.0.0.1:3")
		for port := range 20 {
			_ = w.connect(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(10+port)).String())
		}
		w.expect(false, balancer)
	})
}

// An IPv6 client that uses all of its /64 is one client.
func TestAnIPv6PrefixIsOneClient(t *testing.T) {
	start(t, 2, func(w *testServer) {
		balancer := w.connect("[2001:db8:9::1]:1")
		w.connect("[2001:db8:1::1]:1")
		for range 5 {
			w.connect("[2001:db8:1::2]:1")
		}
		w.expect(false, balancer)
	})
}

// Connections from this host, such as connections of kubelet, are not closed for other clients, however many
// addresses these have.
func TestClientsOnThisHostComeLast(t *testing.T) {
	start(t, 3, func(w *testServer) {
		kubelet, other := w.connect("192.0.2.1:1"), w.connect("127.0.0.1:1")
		for i := range 10 {
			w.connect(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1).String())
		}
		w.expect(false, kubelet, other)
		w.connect("[::ffff:192.0.2.1]:2")
		w.expect(false, other)
	})
}

// Full is called at most once a minute.
func TestFullIsCalledOnceAMinute(t *testing.T) {
	start(t, 1, func(w *testServer) {
		for range 10 {
			w.connect("10.0.0.1:1")
		}
		if w.full != 1 {
			t.Errorf("Full was called %d times, want once", w.full)
		}
		time.Sleep(quietPeriod)
		w.connect("10.0.0.1:1")
		if w.full != 2 {
			t.Errorf("Full was called %d times after a minute, want twice", w.full)
		}
	})
}

func TestNoLimit(t *testing.T) {
	start(t, 0, func(w *testServer) {
		p := w.connect("10.0.0.1:1")
		for range 100 {
			w.connect("10.0.0.1:1")
		}
		w.expect(false, p)
	})
}
