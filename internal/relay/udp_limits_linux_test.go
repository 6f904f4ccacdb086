package relay

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/machine"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// swarm is one address that begins a flow with each port from which it sends.
type swarm struct {
	t    testing.TB
	conn *net.IPConn
	to   netip.AddrPort
}

func newSwarm(t testing.TB, netns int, from string, r *udpRig) *swarm {
	t.Helper()
	s := &swarm{t: t, to: r.at}
	kerneltest.Do(t, netns, func() (err error) {
		s.conn, err = net.ListenIP("ip4:udp", &net.IPAddr{IP: net.ParseIP(from)})
		return err
	})
	t.Cleanup(func() { _ = s.conn.Close() })
	return s
}

// send sends a datagram on flow i.
func (s *swarm) send(i int) {
	s.t.Helper()
	const header, ports = 8, 1<<16 - 1
	b := make([]byte, header, header+1) // of UDP, without a checksum
	binary.BigEndian.PutUint16(b, uint16(1+i%ports))
	binary.BigEndian.PutUint16(b[2:], s.to.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(cap(b)))
	if _, err := s.conn.WriteTo(append(b, 'x'), &net.IPAddr{IP: s.to.Addr().AsSlice()}); err != nil {
		s.t.Errorf("send datagram %d to %v: %v", i, s.to, err)
	}
}

// receive waits for a reply, and returns the port to which it was sent.
func (s *swarm) receive(timeout time.Duration) (int, error) {
	buffer := make([]byte, 100)
	_ = s.conn.SetReadDeadline(time.Now().Add(timeout))
	for {
		_, from, err := s.conn.ReadFrom(buffer)
		if err != nil {
			return 0, err
		}
		if from.String() == s.to.Addr().String() && binary.BigEndian.Uint16(buffer) == s.to.Port() {
			return int(binary.BigEndian.Uint16(buffer[2:])), nil
		}
	}
}

// bound returns a client with a source address.
func bound(t testing.TB, netns int, from string, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	kerneltest.Do(t, netns, func() (err error) {
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from+":0")), net.UDPAddrFromAddrPort(to))
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// liveHeap returns how many bytes live objects have.
func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A client that begins 100,000 flows gets no more than the limit, and memory stays bounded. Another client is served
// throughout, including flows that begin meanwhile.
func TestUDPFlood(t *testing.T) {
	seeds.Long(t)
	const flows, limit, newClients = 100_000, 500, 200
	ns := kerneltest.Namespace(t)
	_, a := echoUDP(t, ns, "a", "127.0.0.1:0")
	balancer := NewBalancer(pools(a))
	r := epollUDP(t, ns, Options{MaxFlows: limit}, Spec{Addr: loopback, Balancer: balancer})
	hog := newSwarm(t, ns, "127.0.0.7", r)
	before := liveHeap()
	done := make(chan struct{})
	pause := time.Millisecond // with one processor, nothing else runs otherwise
	if raceDetector {
		pause *= 10
	}
	go func() {
		defer close(done)
		for i := range flows {
			hog.send(i)
			if i%100 == 0 {
				time.Sleep(pause)
			}
		}
	}()
	old := bound(t, ns, "127.0.0.8", r.at)
	asked, slowest := 0, time.Duration(0)
	for flooded := false; !flooded; asked++ {
		select {
		case <-done:
			flooded = true
		default:
		}
		start := time.Now()
		insist(t, old)
		if asked%50 == 0 && asked < 50*newClients {
			insist(t, bound(t, ns, fmt.Sprintf("127.0.9.%d", asked/50), r.at))
		}
		slowest = max(slowest, time.Since(start))
		if n := r.Stats().Flows; n > limit {
			t.Fatalf("%d flows, want at most %d", n, limit)
		}
	}
	growth := liveHeap() - before
	t.Logf("%d flows attempted, %d refused; %d answers to others, slowest %v; heap +%d KiB",
		flows, r.Stats().Refused["flows"], asked, slowest, growth>>10)
	if growth > 2<<20 || asked < 20 || slowest > machine.Scale(time.Second) || r.Stats().Refused["flows"] == 0 {
		t.Error("want bounded memory, and others served at once")
	}
}

// insist sends a datagram until it is answered, as a resolver does: the flood fills the queue of the socket.
func insist(t *testing.T, c *net.UDPConn) {
	t.Helper()
	for range 20 {
		_, _ = c.Write([]byte("x"))
		_ = c.SetReadDeadline(time.Now().Add(machine.Scale(50 * time.Millisecond)))
		if n, err := c.Read(make([]byte, 9)); err == nil && n == len("a:x") {
			return
		}
	}
	t.Errorf("%v is not answered", c.LocalAddr())
}

// Clients that share all flows evenly lose idle ones to a new client, and none that is in use.
func TestUDPFairness(t *testing.T) {
	const limit = 40
	each(t, func(t *testing.T, start func(*testing.T, int, Options, Spec) *udpRig) {
		ns := kerneltest.Namespace(t)
		_, a := echoUDP(t, ns, "a", "127.0.0.1:0")
		balancer := NewBalancer(pools(a))
		r := start(t, ns, Options{MaxFlows: limit, UDPTimeout: 10 * time.Minute}, Spec{Addr: loopback, Balancer: balancer})
		hog := []*net.UDPConn{}
		for range limit {
			c := bound(t, ns, "127.0.0.7", r.at)
			want(t, c, "x", "a:x")
			hog = append(hog, c)
		}
		for range limit / 2 {
			want(t, bound(t, ns, "127.0.0.8", r.at), "x", "a:x")
		}
		if n := r.Stats(); n.Flows != limit || n.Refused["flows"] != 0 {
			t.Errorf("stats %+v, want %d flows", n, limit)
		}
		for _, c := range hog[limit/2:] { // the newest remain
			want(t, c, "x", "a:x")
		}
		if got := balancer.Counts().Connections; got != limit+limit/2 {
			t.Errorf("%d flows began, want %d: a flow of the hog's share ended", got, limit+limit/2)
		}
		_, _ = bound(t, ns, "127.0.0.8", r.at).Write([]byte("x"))
		eventually(t, "refused", 1, func() int64 { return r.Stats().Refused["flows"] })
	})
}

// Flows leave a quarter of the ports of this host to other programs.
func TestUDPPorts(t *testing.T) {
	const allowed = 15 // three quarters of 20
	ns := kerneltest.Namespace(t)
	kerneltest.Do(t, ns, func() error { return os.WriteFile(portRange, []byte("40000 40019"), 0) })
	_, a := echoUDP(t, ns, "a", "127.0.0.1:1")
	r := epollUDP(t, ns, Options{UDPTimeout: time.Hour},
		Spec{Addr: netip.MustParseAddrPort("127.0.0.1:9"), Balancer: NewBalancer(pools(a))})
	hog := newSwarm(t, ns, "127.0.0.7", r)
	for i := range 100 {
		hog.send(i)
	}
	eventually(t, "refused", 100-allowed, func() int64 { return r.Stats().Refused["flows"] })
	if n := r.Stats().Flows; n != allowed {
		t.Errorf("%d flows, want %d", n, allowed)
	}
	dialUDP(t, ns, a) // the rest of the host finds a port
}

// Without file descriptors, new flows are refused; existing ones continue.
func TestUDPFiles(t *testing.T) {
	ns := kerneltest.Namespace(t)
	_, a := echoUDP(t, ns, "a", "127.0.0.1:0")
	balancer := NewBalancer(pools(a))
	r := epollUDP(t, ns, Options{UDPTimeout: time.Hour}, Spec{Addr: loopback, Balancer: balancer})
	hog := newSwarm(t, ns, "127.0.0.7", r)
	good := bound(t, ns, "127.0.0.8", r.at)
	want(t, good, "x", "a:x")
	lowFiles(t, 50)
	for i := range 300 {
		hog.send(i)
	}
	eventually(t, "flows and refusals", 301, func() int64 {
		s := r.Stats()
		return s.Flows + s.Refused["file descriptors"]
	})
	if n := r.Stats().Flows; n < 20 || n > 60 {
		t.Errorf("%d flows, want about 50", n)
	}
	want(t, good, "y", "a:y")
}

// manyFiles raises the limit of file descriptors as far as the machine allows it, until the test ends.
func manyFiles(t testing.TB, files uint64) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}) != nil {
		return
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	})
}

// lowFiles leaves the process a number of free file descriptors until the test ends.
func lowFiles(t testing.TB, free int) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	next, err := unix.FcntlInt(0, unix.F_DUPFD, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(next)
	low := unix.Rlimit{Cur: uint64(next + free), Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	})
}

// As many flows as there are file descriptors, 60,000 at most, are all served. The test reports their memory.
func TestUDPManyFlows(t *testing.T) {
	const most, spare, backends, maxLost = 60_000, 1000, 8, 10
	manyFiles(t, most+spare)
	if os.Getenv(kerneltest.CompleteVar) != "" { // only the test uses the kernel
		if err := os.WriteFile(udpMemory, []byte("200000 200000 200000"), 0); err != nil {
			t.Fatal(err)
		}
	}
	flows := min(most, fileLimit()-spare)
	complete(t, "flows", flows, most)
	if testing.Short() {
		flows = min(flows, 2000)
	}
	ns := kerneltest.Namespace(t)
	kerneltest.Do(t, ns, func() error { return os.WriteFile(portRange, []byte("1100 65000"), 0) })
	all := []netip.AddrPort{}
	for range backends {
		_, a := echoUDP(t, ns, "a", "127.0.0.1:0")
		all = append(all, a)
	}
	balancer := NewBalancer(pools(all...))
	before := liveHeap()
	r := epollUDP(t, ns, Options{MaxFlows: flows, UDPTimeout: time.Hour}, Spec{Addr: loopback, Balancer: balancer})
	hog := newSwarm(t, ns, "127.0.0.7", r)
	empty := liveHeap()
	start := time.Now()
	lost := 0
	for i := range flows {
		for hog.send(i); lost < maxLost; hog.send(i) {
			if _, err := hog.receive(10 * time.Second); err == nil {
				break
			}
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d datagrams were lost: %+v", lost, r.Stats())
	}
	t.Logf("%d flows in %v: %d bytes of heap for each, %d KiB without flows; sockets of the kernel: %s",
		flows, time.Since(start), (liveHeap()-empty)/int64(flows), (empty-before)>>10, socketMemory(t))
	if n := r.Stats().Flows; n != int64(flows) {
		t.Errorf("%d flows, want %d", n, flows)
	}
	for i := 0; i < flows; i += 97 { // each still has its backend
		hog.send(i)
	}
	if n := balancer.Counts().Connections; n != int64(flows) {
		t.Errorf("%d flows began, want %d", n, flows)
	}
}
