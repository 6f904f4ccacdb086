package traffic

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

func addr(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// A million entries of hundreds of thousands of clients take the memory of a thousand clients. Each heavy client is
// counted, no count is too high, and none is too low by more than lost.
func TestHeavyClientsAmongVeryMany(t *testing.T) {
	const all, size = 1_000_000, 1000
	random := rand.New(rand.NewPCG(1, 2))
	h, exact := newHeavy(size), map[netip.Addr]uint64{}
	for range all {
		from := addr(random.Uint32N(400_000))
		switch n := random.IntN(100); {
		case n < 40:
			from = addr(1 << 30)
		case n < 42:
			from = addr(1<<30 + 1)
		}
		exact[from]++
		h.add(from, noPort, false)
	}
	if len(h.all) > size || h.lost > all/size {
		t.Errorf("%d clients, %d lost", len(h.all), h.lost)
	}
	for from, n := range exact {
		var got uint64
		if c := h.all[from]; c != nil {
			got = uint64(c.entries)
		}
		if got > n || got+h.lost < n {
			t.Fatalf("%s has %d entries, and %d lost, want %d", from, got, h.lost, n)
		}
	}
	if h.all[addr(1<<30)] == nil || h.all[addr(1<<30+1)] == nil {
		t.Error("a heavy client is missing")
	}
}

// top returns the port with the most entries, even if the client uses more than four ports.
func TestTopPortOfAClient(t *testing.T) {
	c := &clientCount{}
	if got := c.top(); got != noPort {
		t.Errorf("without entries: got %d, want %d", got, noPort)
	}
	for i := range int32(60) {
		c.add(i % 6)
		c.add(3)
	}
	if got := c.top(); got != 3 {
		t.Errorf("got port %d, want 3", got)
	}
}
