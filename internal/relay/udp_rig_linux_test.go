package relay

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// udpRig is an Engine with a UDP listener.
type udpRig struct {
	*Engine
	*Listener
	at netip.AddrPort
}

// kinds are the loops on which listeners can be.
var kinds = map[string]func(*testing.T, int, Options, Spec) *udpRig{"epoll": epollUDP, "portable": portableUDP}

func epollUDP(t *testing.T, netns int, o Options, s Spec) *udpRig {
	t.Helper()
	o.NetNS = netns
	return rig(t, newSystem, o, s)
}

func portableUDP(t *testing.T, netns int, o Options, s Spec) *udpRig {
	t.Helper()
	o.NetNS = netns
	return rig(t, portableSystem, o, s)
}

func portableSystem(e *Engine) (system, error) { return newPortable(e), nil }

func rig(t *testing.T, system func(*Engine) (system, error), o Options, s Spec) *udpRig {
	t.Helper()
	e, err := newEngine(o, system)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	s.Protocol = UDP
	l, err := e.Listen(s)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if stats := e.Stats(); stats.Flows != 0 {
			t.Errorf("%d flows remain after the end", stats.Flows)
		}
		if n := len(e.hops.from); n != 0 {
			t.Errorf("%d sockets to backends are known after the end", n)
		}
	})
	return &udpRig{Engine: e, Listener: l, at: l.Addr()}
}

// echoUDP answers each datagram with its name, a colon and the datagram, until it is closed.
func echoUDP(t testing.TB, netns int, name, at string) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	var c *net.UDPConn
	kerneltest.Do(t, netns, func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buffer := make([]byte, maxDatagram)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buffer[len(name)+1:])
			if err != nil {
				return
			}
			copy(buffer, name+":")
			if n > 0 && buffer[len(name)+1] == '0' { // a reply of the same size
				_, _ = c.WriteToUDPAddrPort(buffer[len(name)+1:][:n], from)
				continue
			}
			_, _ = c.WriteToUDPAddrPort(buffer[:len(name)+1+n], from)
		}
	}()
	return c, c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// dialUDP returns a client. It receives datagrams from the address to which it sends only.
func dialUDP(t testing.TB, netns int, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	kerneltest.Do(t, netns, func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask sends a datagram and returns the answer.
func ask(c *net.UDPConn, question string) (string, error) {
	if _, err := c.Write([]byte(question)); err != nil {
		return "", err
	}
	return answer(c)
}

func answer(c *net.UDPConn) (string, error) {
	buffer := make([]byte, maxDatagram)
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return "", err
	}
	n, err := c.Read(buffer)
	return string(buffer[:n]), err
}

// want sends a datagram and verifies the answer.
func want(t testing.TB, c *net.UDPConn, question, want string) {
	t.Helper()
	if got, err := ask(c, question); got != want || err != nil {
		t.Errorf("%s is answered by %q, %v, want %q", question, got, err, want)
	}
}

// eventually waits until a counter has a value.
func eventually(t testing.TB, what string, want int64, get func() int64) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for get() != want {
		if time.Now().After(deadline) {
			t.Errorf("%s: %d, want %d", what, get(), want)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func pools(backends ...netip.AddrPort) *Target {
	pool := []Backend{}
	for _, b := range backends {
		pool = append(pool, Backend{Addr: b, Weight: 1})
	}
	return &Target{Pools: [][]Backend{pool}}
}

func each(t *testing.T, test func(*testing.T, func(*testing.T, int, Options, Spec) *udpRig)) {
	t.Helper()
	for name, start := range kinds {
		t.Run(name, func(t *testing.T) { test(t, start) })
	}
}

// loopback is an address of which the system chooses the port.
var loopback = netip.MustParseAddrPort("127.0.0.1:0")
