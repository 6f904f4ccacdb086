package slots

import (
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"testing"
)

func pods(n int) (list []netip.AddrPort) {
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, byte(1 + i/62500), byte(i / 250), byte(1 + i%250)})
		list = append(list, netip.AddrPortFrom(addr, 8080))
	}
	return list
}

// If one of N backends leaves, 1/N + 1 % of the clients get another one at most, on average over all that may leave.
func TestMaglevDisruption(t *testing.T) {
	one := func(netip.AddrPort) uint16 { return 1 }
	for _, n := range []int{3, 5, 10, 20, 50, 81, 160} {
		all := pods(n)
		before, moved, most := Maglev(all, one), 0., 0.
		for out := range n {
			after, other := Maglev(slices.Delete(slices.Clone(all), out, out+1), one), 0
			if len(after) != len(before) {
				t.Fatalf("%d backends have another size of the table than %d: choose other numbers", n-1, n)
			}
			for i := range before {
				if before[i] != after[i] {
					other++
				}
			}
			share := float64(other)/float64(len(before)) - 1/float64(n)
			moved, most = moved+share, max(most, share)
		}
		if moved /= float64(n); moved > 0.01 || most > 0.02 {
			t.Errorf("%d backends: 1/N + %.4f moved, %.4f at most; want 0.01 on average, 0.02 at most", n, moved, most)
		}
		t.Logf("%d backends, %d slots: 1/N + %.2f %% moved, %.2f %% at most", n, len(before), 100*moved, 100*most)
	}
}

// A backend that comes back in parts takes slots of others, and moves few of theirs among them.
func TestPartsMoveFewClientsOfOthers(t *testing.T) {
	for _, n := range []int{3, 20, 100} {
		all := pods(n)
		back, part := all[1], uint16(16)
		weight := func(at netip.AddrPort) uint16 {
			if at == back {
				return part
			}
			return 16
		}
		var before []netip.AddrPort
		for _, part = range []uint16{1, 4, 8, 16} {
			table, moved := Maglev(all, weight), 0
			for i, at := range before {
				if at != table[i] && table[i] != back {
					moved++
				}
			}
			if most := len(table) / 50; moved > most {
				t.Errorf("%d of %d slots move among others when one of %d gets %d/16, want %d at most",
					moved, len(table), n, part, most)
			}
			before = table
		}
	}
}

// The slots of a backend are its share by weight, to within a slot, and at least one. Weights that a tenant chooses do
// not delay the changes of all others.
func TestSharesOfMaglev(t *testing.T) {
	for name, c := range map[string]struct {
		backends int
		first    uint16 // weight; that of others is 1
		within   float64
	}{
		"same weights": {10, 1, 1}, "weights": {7, 5, 1}, "one backend": {1, 9, 0}, "two": {2, 3, 1},
		"a very large weight": {100, 65535, 200}, "more backends than slots": {100_000, 1, 1},
	} {
		list, count := pods(c.backends), map[netip.AddrPort]int{}
		weight := func(b netip.AddrPort) uint16 {
			if b == list[0] {
				return c.first
			}
			return 1
		}
		table := Maglev(list, weight)
		for _, b := range table {
			count[b]++
		}
		total := float64(int(c.first) + c.backends - 1)
		for _, b := range list {
			exact := float64(len(table)) * float64(weight(b)) / total
			if got := count[b]; math.Abs(float64(got)-exact) > c.within || got == 0 && c.backends < len(table) {
				t.Errorf("%s: %s has %d slots, want %.1f", name, b, got, exact)
				break
			}
		}
	}
}

// Hashes of the test vectors of lookup3.c, with its initial value.
func TestHash(t *testing.T) {
	const text = "Four score and seven years ago"
	for _, c := range []struct {
		text string
		seed uint32
		want uint32
	}{
		{"", 0, 0xdeadbeef}, {"", 0xdeadbeef, 0xbd5b7dde}, {text, 0, 0x17770551}, {text, 1, 0xcd628161},
	} {
		if got := Hash([]byte(c.text), c.seed); got != c.want {
			t.Errorf("%q with %#x: %#x, want %#x", c.text, c.seed, got, c.want)
		}
	}
}

// Other tables or hashes need another version, so that nodes with different ones have other checksums.
func TestVersion(t *testing.T) {
	h := fnv.New32a()
	for _, at := range Maglev(pods(6), func(at netip.AddrPort) uint16 { return 1 + at.Port()%3 }) {
		fmt.Fprintln(h, at, Of(at.Addr(), 1021))
	}
	fmt.Fprintln(h, Of(netip.MustParseAddr("2001:db8::1"), 1021))
	if got := h.Sum32(); version != 1 || got != 0x239dd3ff {
		t.Errorf("version %d has %#x: set another version if tables or hashes have changed", version, got)
	}
}

// A checksum depends on ports, backends and weights, not on the order of ports. A table that is added twice is removed.
func TestChecksum(t *testing.T) {
	one := func(netip.AddrPort) uint16 { return 1 }
	without := func(out netip.AddrPort) func(netip.AddrPort) uint16 {
		return func(at netip.AddrPort) uint16 {
			if at == out {
				return 0
			}
			return 1
		}
	}
	all := pods(3)
	var a, b Checksum
	a.Add("web", all[:2], one)
	b.Add("api", all, one)
	b.Add("web", all, without(all[2]))
	if a.Add("api", all, one); a != b || a == 0 || len(a.String()) != 8 {
		t.Errorf("%s and %s, want the same", a, b)
	}
	if b.Add("api", all, one); a == b {
		t.Errorf("%s without a table, want another", b)
	}
	seen := map[Checksum]bool{}
	for _, add := range []func(*Checksum){
		func(c *Checksum) { c.Add("web", all, one) },
		func(c *Checksum) { c.Add("api", all, one) },
		func(c *Checksum) { c.Add("web", all[:2], one) },
		func(c *Checksum) { c.Add("web", all, func(netip.AddrPort) uint16 { return 2 }) },
	} {
		var c, read Checksum
		add(&c)
		seen[c] = true
		if text, _ := c.MarshalText(); read.UnmarshalText(text) != nil || read != c {
			t.Errorf("%s is read as %s", c, read)
		}
	}
	if len(seen) != 4 {
		t.Errorf("4 tables have the checksums %v", seen)
	}
}
