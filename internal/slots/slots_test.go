package slots

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"testing"
)

func pods(n int) (list []netip.AddrPort) {
	for i := range n {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(1 + i%250)}), 8080))
	}
	return list
}

// A removed backend moves few clients of others.
func TestMaglevDisruption(t *testing.T) {
	all := pods(10)
	one := func(netip.AddrPort) uint16 { return 1 }
	before, after := Maglev(all, one), Maglev(append(pods(4), all[5:]...), one)
	moved := 0
	for i := range before {
		if before[i] != all[4] && before[i] != after[i] {
			moved++
		}
	}
	if share := float64(moved) / float64(len(before)); share > 0.05 {
		t.Errorf("%.3f of the slots of other backends have moved, want at most 0.05", share)
	}
	t.Logf("%d of %d slots of other backends have moved", moved, len(before))
}

// Weights that a tenant chooses do not delay the changes of all others: a backend of the least weight gets a slot of
// a Maglev table in mostTurns rounds at most.
func TestWeightsOfMaglevAreBounded(t *testing.T) {
	list := pods(10000)
	weights := bounded(list, func(b netip.AddrPort) uint16 {
		if b == list[0] {
			return 65535
		}
		return 1
	})
	if least, most := slices.Min(weights), slices.Max(weights); least < 1 || most != mostTurns {
		t.Errorf("weights from %d to %d, want from 1 to %d", least, most, mostTurns)
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
	if got := h.Sum32(); version != 1 || got != 0x26e78b8f {
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
