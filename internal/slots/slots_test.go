package slots

import (
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
