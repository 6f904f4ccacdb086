package relay

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/machine"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// Limits of TestHostile, and how much more than these the attack asks for.
const (
	hostileConnections, hostileFlows = 300, 300
	attackConnections, attackFlows   = 2000, 20_000
)

// Attackers open connections that never send, send a byte now and then, connect and reset in turn, and begin UDP
// flows, all far beyond the limits. A connection and a flow beside them are served at once throughout, memory stays
// bounded, and refusals are counted.
func TestHostile(t *testing.T) {
	seeds.Long(t)
	ns := kerneltest.Namespace(t)
	run(t, Options{NetNS: ns, MaxConnections: hostileConnections, MaxFlows: hostileFlows}, newSystem, func(b *bench) {
		tcp, _ := b.front(one(b.echo()))
		_, at := echoUDP(t, ns, "a", "127.0.0.1:0")
		udp, err := b.engine.Listen(Spec{Protocol: UDP, Addr: loopback, Balancer: NewBalancer(one(at))})
		if err != nil {
			t.Fatal(err)
		}
		r := &udpRig{Engine: b.engine, Listener: udp, at: udp.Addr()}
		good := b.dial(tcp.Addr())
		_ = good.SetDeadline(time.Now().Add(time.Minute))
		flow := bound(t, ns, "127.0.0.8", r.at)
		before := liveHeap()
		attacked := attack(b, tcp.Addr(), r)
		slowest, rounds := time.Duration(0), 0
		for over := false; !over; rounds++ {
			select {
			case <-attacked:
				over = true
			default:
			}
			start := time.Now()
			_, _ = good.Write([]byte("x"))
			if _, err := io.ReadFull(good, make([]byte, 1)); err != nil {
				t.Fatalf("a connection beside the attack: %v", err)
			}
			insist(t, flow)
			slowest = max(slowest, time.Since(start))
			if s := b.engine.Stats(); s.Connections > hostileConnections+1 || s.Flows > hostileFlows {
				t.Fatalf("beyond the limits: %+v", s)
			}
		}
		s, growth := b.engine.Stats(), liveHeap()-before
		t.Logf("%d rounds, slowest %v; refused %v; heap +%d KiB", rounds, slowest, s.Refused, growth>>10)
		if slowest > machine.Scale(time.Second) || rounds < 20 || growth > 16<<20 {
			t.Error("want others served at once, and bounded memory")
		}
		if s.Refused[reasonConnections] == 0 || s.Refused[reasonFlows] == 0 {
			t.Error("want refusals of both kinds")
		}
	})
}

// Connections that are half-closed, by the client or by the backend, and never end take no more than other connections:
// beyond the limit they are refused, and a client with fewer is served at once. All end when their clients are gone.
func TestHostileHalfClosed(t *testing.T) {
	const limit, attempts = 100, 400
	run(t, Options{NetNS: kerneltest.Namespace(t), MaxConnections: limit}, newSystem, func(b *bench) {
		gone := make(chan struct{})
		t.Cleanup(sync.OnceFunc(func() { close(gone) }))
		byClient, _ := b.front(one(b.backend(func(c *net.TCPConn) {
			_, _ = io.Copy(io.Discard, c)
			<-gone // it does not close its own half
			_ = c.Close()
		})))
		byBackend, _ := b.front(one(b.backend(func(c *net.TCPConn) {
			_ = c.CloseWrite()
			<-gone
			_ = c.Close()
		})))
		good, _ := b.front(one(b.echo()))
		var open []*net.TCPConn
		slowest := time.Duration(0)
		before := liveHeap()
		for i := range attempts {
			to := byClient
			if i%2 > 0 {
				to = byBackend
			}
			if c, err := b.try(to.Addr(), time.Second); err == nil { // otherwise it was reset at once
				if i%2 == 0 {
					_ = c.CloseWrite()
				}
				open = append(open, c)
			}
			if i%10 > 0 {
				continue
			}
			start := time.Now()
			if err := b.answered("127.0.0.9", good.Addr()); err != nil {
				t.Fatalf("another client, beside %d half-closed connections: %v", i+1, err)
			}
			slowest = max(slowest, time.Since(start))
			if n := b.engine.Stats().Connections; n > limit {
				t.Fatalf("%d connections are open, want at most %d", n, limit)
			}
		}
		growth := liveHeap() - before
		t.Logf("slowest %v; refused %v; heap +%d KiB", slowest, b.engine.Stats().Refused, growth>>10)
		if slowest > machine.Scale(time.Second) || growth > 4<<20 {
			t.Error("want others served at once, and bounded memory")
		}
		b.eventually("all but those at the limit refused, and these open", func() bool {
			s := b.engine.Stats()
			return s.Refused[reasonConnections] >= attempts-limit && s.Connections >= limit-1
		})
		for _, c := range open {
			_ = c.SetLinger(0)
			_ = c.Close()
		}
		b.eventually("all ended", func() bool { return b.engine.Stats().Connections == 0 })
	})
}

// answered connects a client with an address and exchanges a byte.
func (b *bench) answered(from string, to netip.AddrPort) error {
	return netns.Do(b.ns, func() error {
		d := net.Dialer{
			LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)), Timeout: 30 * time.Second,
		}
		c, err := d.DialContext(b.Context(), "tcp", to.String())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err = c.Write([]byte("x")); err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		return err
	})
}

// attack starts the attackers, and returns a channel that is closed when they have ended.
func attack(b *bench, to netip.AddrPort, r *udpRig) <-chan struct{} {
	b.Helper()
	swarm := newSwarm(b, b.ns, "127.0.0.7", r)
	var attackers sync.WaitGroup
	attackers.Go(func() { // connections that stay open and send a byte, or nothing
		var open []*net.TCPConn
		for i := range attackConnections {
			if c, err := b.try(to, time.Second); err == nil {
				open = append(open, c)
			}
			if len(open) > 0 {
				_, _ = open[i%len(open)].Write([]byte("x"))
			}
		}
		for _, c := range open {
			_ = c.Close()
		}
	})
	attackers.Go(func() { // connections that are reset at once
		for range attackConnections {
			if c, err := b.try(to, time.Second); err == nil {
				_ = c.SetLinger(0)
				_ = c.Close()
			}
		}
	})
	attackers.Go(func() { // flows
		for i := range attackFlows {
			swarm.send(i)
			if i%50 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	})
	attacked := make(chan struct{})
	go func() {
		attackers.Wait()
		close(attacked)
	}()
	return attacked
}
