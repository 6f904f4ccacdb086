package relay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/slots"
)

// backends returns backends 10.0.0.0:80, 10.0.0.1:80 ... with weights.
func backends(weights ...uint16) []Backend {
	var all []Backend
	for i, w := range weights {
		all = append(all, Backend{Addr: backend(i), Weight: w})
	}
	return all
}

func backend(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
}

func client(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)})
}

// equal returns n backends of weight 1.
func equal(n int) []Backend {
	weights := make([]uint16, n)
	for i := range weights {
		weights[i] = 1
	}
	return backends(weights...)
}

// seeded returns a Balancer with reproducible random numbers and a clock.
func seeded(t *Target) (*Balancer, *time.Time) {
	now := time.Unix(1, 0)
	b := NewBalancer(&Target{})
	b.random = rand.New(rand.NewPCG(1, 2)).Float64
	b.now = func() time.Time { return now }
	b.Set(t)
	return b, &now
}

// counted returns how often each backend is chosen in n picks of different clients, without connections.
func counted(b *Balancer, pool, n int) map[netip.AddrPort]int {
	m := map[netip.AddrPort]int{}
	for i := range n {
		if addr, ok := b.pick(client(i), pool, nil); ok {
			m[addr]++
		}
	}
	return m
}

// Each scheduler spreads connections by weight, and Shares says so.
func TestDistribution(t *testing.T) {
	const picks = 60_000
	for s, name := range map[Scheduler]string{
		RoundRobin: "RoundRobin", LeastConnections: "LeastConnections", SourceHash: "SourceHash",
	} {
		for _, weights := range [][]uint16{{1}, {1, 1, 1}, {1, 2, 3}, {0, 5, 1}, {65535, 1, 65534}} {
			t.Run(fmt.Sprint(name, weights), func(t *testing.T) {
				b, _ := seeded(&Target{Scheduler: s, Pools: [][]Backend{backends(weights...)}})
				got, mean := map[netip.AddrPort]float64{}, map[netip.AddrPort]float64{}
				for i := range picks {
					shares := b.Shares(client(i), 0)
					addr, _ := b.pick(client(i), 0, nil)
					got[addr] += 1. / picks
					for to, share := range shares {
						mean[to] += share / picks
					}
					if shares[addr] == 0 {
						t.Fatalf("%v was chosen, against %v", addr, shares)
					}
					if s == LeastConnections {
						b.reached(addr) // none ends
					}
				}
				total := 0.
				for _, w := range weights {
					total += float64(w)
				}
				for i, w := range weights {
					share, expected := got[backend(i)], mean[backend(i)]
					if s != LeastConnections && math.Abs(share-expected) > 0.01 {
						t.Errorf("backend %d has %.3f of the connections, Shares says %.3f", i, share, expected)
					}
					if want := float64(w) / total; math.Abs(share-want) > 0.01 || w == 0 && share > 0 {
						t.Errorf("backend %d has %.3f of the connections, want %.3f", i, share, want)
					}
				}
			})
		}
	}
}

// Round robin is exact in each turn, with weights too, and continues at the same position after a change.
func TestRoundRobinIsSmooth(t *testing.T) {
	b, _ := seeded(&Target{Pools: [][]Backend{backends(5, 1, 1)}})
	for range 10 {
		if got := counted(b, 0, 7); got[backend(0)] != 5 || got[backend(1)] != 1 || got[backend(2)] != 1 {
			t.Errorf("one turn: %v", got)
		}
	}
	target := &Target{Pools: [][]Backend{equal(3)}}
	b, _ = seeded(target)
	got := map[netip.AddrPort]int{}
	for range 30 {
		addr, _ := b.pick(client(0), 0, nil)
		got[addr]++
		b.Set(target)
	}
	for i := range 3 {
		if got[backend(i)] != 10 {
			t.Errorf("backend %d was chosen %d times of 30", i, got[backend(i)])
		}
	}
}

// A backend with fewer connections gets the next ones.
func TestLeastConnections(t *testing.T) {
	b, _ := seeded(&Target{Scheduler: LeastConnections, Pools: [][]Backend{equal(2), equal(2)}})
	for range 5 {
		b.reached(backend(0))
	}
	if got := counted(b, 1, 100); got[backend(1)] != 100 {
		t.Errorf("with 5 connections at backend 0: %v", got)
	}
	b.Set(&Target{Scheduler: LeastConnections, Pools: [][]Backend{equal(3)}})
	if got := counted(b, 0, 100); got[backend(0)] > 0 {
		t.Errorf("after a change: %v", got)
	}
	for range 5 {
		b.ended(backend(0))
	}
	if got := counted(b, 0, 300); got[backend(0)] < 70 {
		t.Errorf("after its connections have ended: %v", got)
	}
	b.ended(backend(0)) // once too often
	b.reached(netip.MustParseAddrPort("[2001:db8::1]:1"))
}

// If a backend of a hash leaves or comes, few other clients move. A client has the backend of its slot.
func TestSourceHashIsStable(t *testing.T) {
	const clients = 20_000
	for _, n := range []int{3, 30, 3000} {
		before, _ := seeded(&Target{Scheduler: SourceHash, Pools: [][]Backend{equal(n)}})
		after, _ := seeded(&Target{Scheduler: SourceHash, Pools: [][]Backend{equal(n + 1)}})
		var addrs []netip.AddrPort
		for i := range n {
			addrs = append(addrs, backend(i))
		}
		table, moved := slots.Maglev(addrs, func(netip.AddrPort) uint16 { return 1 }), 0
		for i := range clients {
			x, _ := before.pick(client(i), 0, nil)
			y, _ := after.pick(client(i), 0, nil)
			again, _ := before.pick(client(i), 0, nil)
			if x != again {
				t.Fatalf("client %v goes to %v and %v", client(i), x, again)
			}
			if want := table[slots.Of(client(i), len(table))]; x != want {
				t.Fatalf("client %v goes to %v, want %v", client(i), x, want)
			}
			if x != y {
				moved++
			}
		}
		if most := clients/(n+1) + clients/25; moved > most {
			t.Errorf("%d of %d clients have moved with backend %d, want at most %d", moved, clients, n+1, most)
		}
	}
}

// Backends that were tried are avoided while there are others.
func TestTried(t *testing.T) {
	for _, s := range []Scheduler{RoundRobin, LeastConnections, SourceHash} {
		for _, weights := range [][]uint16{{1, 1, 1, 1}, {100, 7, 1, 2}} {
			b, _ := seeded(&Target{Scheduler: s, Pools: [][]Backend{backends(weights...)}})
			for i := range 200 {
				var tried []netip.AddrPort
				for range weights {
					addr, ok := b.pick(client(i), 0, tried)
					for _, other := range tried {
						if addr == other || !ok {
							t.Fatalf("scheduler %d: %v after %v", s, addr, tried)
						}
					}
					tried = append(tried, addr)
				}
				if _, ok := b.pick(client(i), 0, tried); !ok {
					t.Fatalf("scheduler %d: none after all were tried", s)
				}
			}
		}
	}
}

// A pool without backends of a weight has none to choose.
func TestNone(t *testing.T) {
	for _, s := range []Scheduler{RoundRobin, LeastConnections, SourceHash} {
		b, _ := seeded(&Target{Scheduler: s, Affinity: time.Hour, Pools: [][]Backend{nil, backends(0, 0)}})
		for pool := range 3 {
			if addr, ok := b.pick(client(0), pool, nil); ok {
				t.Errorf("scheduler %d, pool %d: %v", s, pool, addr)
			}
			for _, share := range b.Shares(client(0), pool) {
				if share != 0 {
					t.Errorf("scheduler %d, pool %d: %v", s, pool, share)
				}
			}
		}
	}
}

// A client stays on its backend until it was away for the timeout, the backend fails or leaves.
func TestAffinity(t *testing.T) {
	const timeout = time.Minute
	target := &Target{Affinity: timeout, Pools: [][]Backend{equal(5), equal(2)}}
	b, now := seeded(target)
	first, _ := b.pick(client(0), 0, nil)
	for range 20 {
		*now = now.Add(timeout - 1) // the timeout slides
		if again, _ := b.pick(client(0), 0, nil); again != first {
			t.Fatalf("%v after %v", again, first)
		}
		if shares := b.Shares(client(0), 0); shares[first] != 1 {
			t.Errorf("Shares of a client with affinity: %v", shares)
		}
		counted(b, 0, 3)
	}
	changes := func(what string, change func()) {
		t.Helper()
		c := netip.MustParseAddr("2001:db8::1")
		before, _ := b.pick(c, 0, nil)
		change()
		other := 0
		for range 20 {
			b.affinity.drop(c, backend(9)) // has no effect
			if addr, _ := b.pick(c, 0, nil); addr != before {
				other++
				break
			}
			b.failed(client(1), before) // of another client
			counted(b, 0, 1)
		}
		if other == 0 {
			t.Errorf("%s: the client stays", what)
		}
	}
	changes("timeout", func() { *now = now.Add(timeout) })
	changes("failure", func() {
		b.failed(netip.MustParseAddr("2001:db8::1"), must(b.pick(netip.MustParseAddr("2001:db8::1"), 0, nil)))
	})
	c := client(1 << 20)
	_, _ = b.pick(c, 1, nil)
	one, _ := b.pick(c, 0, nil)
	if two, _ := b.pick(c, 1, nil); two != one {
		t.Errorf("pools of one Balancer: %v and %v", one, two)
	}
	b.Set(&Target{Affinity: timeout, Pools: [][]Backend{backends(0, 0, 0, 1), equal(2)}})
	if addr, _ := b.pick(c, 0, nil); addr != backend(3) {
		t.Errorf("%v has weight 0", addr)
	}
}

func must(a netip.AddrPort, _ bool) netip.AddrPort { return a }

// Millions of clients do not exhaust memory: the oldest are forgotten.
func TestAffinityIsBounded(t *testing.T) {
	b, _ := seeded(&Target{Affinity: time.Hour, Pools: [][]Backend{equal(3)}})
	const clients = 3 * maxAffinity
	for i := range clients {
		_, _ = b.pick(client(i), 0, nil)
	}
	if n := len(b.affinity.clients); n != maxAffinity {
		t.Errorf("%d clients are remembered, want %d", n, maxAffinity)
	}
	if b.affinity.clients[client(clients-1)] == nil || b.affinity.clients[client(0)] != nil {
		t.Error("the oldest was not the one to be forgotten")
	}
	b.Set(&Target{Affinity: time.Hour, Pools: [][]Backend{{{Addr: backend(9), Weight: 1}}}})
	if n := len(b.affinity.clients); n != 0 {
		t.Errorf("%d clients of backends that have left are remembered", n)
	}
}

// Concurrent use is safe, and keeps the loads right.
func TestConcurrentPicks(t *testing.T) {
	for _, s := range []Scheduler{RoundRobin, LeastConnections, SourceHash} {
		b := NewBalancer(&Target{Scheduler: s, Affinity: time.Hour, Pools: [][]Backend{backends(1, 2, 3)}})
		done := make(chan bool)
		for w := range 4 {
			go func() {
				for i := range 2000 {
					addr, _ := b.pick(client(i), 0, nil)
					b.reached(addr)
					if i%100 == w {
						b.Set(&Target{Scheduler: s, Pools: [][]Backend{backends(1, uint16(2+i%2), 3)}})
						b.Shares(client(i), 0)
					}
					b.ended(addr)
				}
				done <- true
			}()
		}
		for range 4 {
			<-done
		}
		for addr, l := range b.plan.Load().listed {
			if n := l.open.Load(); n != 0 {
				t.Errorf("scheduler %d: backend %v has %d connections", s, addr, n)
			}
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, s := range []Scheduler{RoundRobin, LeastConnections, SourceHash} {
		for _, n := range []int{3, 1000, 10_000} {
			weights := make([]uint16, n)
			for i := range weights {
				weights[i] = uint16(1 + i%3)
			}
			balancer := NewBalancer(&Target{Scheduler: s, Pools: [][]Backend{backends(weights...)}})
			b.Run(fmt.Sprintf("%d/%d", s, n), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					addr, _ := balancer.pick(client(i), 0, nil)
					balancer.reached(addr)
					balancer.ended(addr)
				}
			})
		}
	}
}
