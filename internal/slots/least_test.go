package slots

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// model is a Service whose last backend takes five times as long as each other one. Connections come at random, and
// last for a random time. A second is one call of Level.
type model struct {
	random *rand.Rand
	slots  []netip.AddrPort
	loads  []Load
	hold   float64 // seconds on average, except on the last backend
}

const slowness = 5

func newModel(backends int, hold float64) *model {
	m := &model{random: rand.New(rand.NewPCG(1, 2)), hold: hold}
	for _, at := range pods(backends) {
		m.loads = append(m.loads, Load{At: at, Weight: 1})
	}
	m.slots = Fit(nil, m.loads)
	return m
}

// second advances the time, with about as many new connections.
func (m *model) second(connections float64) {
	const steps = 10
	index := map[netip.AddrPort]int{}
	for i, l := range m.loads {
		index[l.At] = i
	}
	for range steps {
		for i := range m.loads {
			hold := m.hold
			if i == len(m.loads)-1 {
				hold *= slowness
			}
			ends := 1 - math.Exp(-1/(steps*hold))
			for range m.loads[i].Live {
				if m.random.Float64() < ends {
					m.loads[i].Live--
				}
			}
		}
		for due := connections / steps; m.random.Float64() < due; due-- {
			m.loads[index[m.slots[m.random.IntN(len(m.slots))]]].Live++
		}
	}
}

// last returns the connections and the slots of the slow backend, relative to the average of all.
func (m *model) last() (load, share float64) {
	sum, have := 0, 0
	for _, l := range m.loads {
		sum += l.Live
	}
	slow := m.loads[len(m.loads)-1]
	for _, at := range m.slots {
		if at == slow.At {
			have++
		}
	}
	n := float64(len(m.loads))
	return n * float64(slow.Live) / float64(sum), n * float64(have) / float64(len(m.slots))
}

// A slow backend has much fewer connections than with slots at random, and its share settles, whether connections last
// for a tenth of a second or for half a minute.
func TestLeastSettles(t *testing.T) {
	for _, hold := range []float64{0.1, 1, 30} {
		for _, backends := range []int{2, 10} {
			run := func(level func([]netip.AddrPort, []Load) []netip.AddrPort) (load, varies float64) {
				m, seconds := newModel(backends, hold), 50+int(20*hold)
				var shares []float64
				for second := range 2 * seconds {
					m.second(30 * float64(backends) / hold)
					m.slots = level(m.slots, m.loads)
					if second >= seconds {
						more, share := m.last()
						load, shares = load+more/float64(seconds), append(shares, share)
					}
				}
				return load, slices.Max(shares) - slices.Min(shares)
			}
			random, _ := run(Fit)
			leveled, varies := run(Level)
			t.Logf("%d backends, %.1f s: %.2f times the average of connections, at random %.2f; shares vary by %.2f",
				backends, hold, leveled, random, varies)
			if leveled-1 > 0.7*(random-1) || varies > 0.6 {
				t.Errorf("%d backends, %.1f s: %.2f times the average of connections, at random %.2f; shares vary by %.2f",
					backends, hold, leveled, random, varies)
			}
		}
	}
}

// A backend without connections beside busy ones gets most new ones within five seconds, and small differences move
// nothing.
func TestLevel(t *testing.T) {
	m := newModel(3, 1)
	if before := m.slots; !slices.Equal(before, Level(before, m.loads)) {
		t.Error("slots of backends without connections move")
	}
	m.loads[0].Live, m.loads[1].Live, m.loads[2].Live = 100, 103, 98
	if before := m.slots; !slices.Equal(before, Level(before, m.loads)) {
		t.Error("slots move for a difference of 5 %")
	}
	m.loads[2].Live = 0
	for range 5 {
		m.slots = Level(m.slots, m.loads)
	}
	if _, share := m.last(); share < 2 {
		t.Errorf("a backend without connections has %.2f times the average share", share)
	}
}

// Slots that fit stay. Others have only the backends, each at least once. A new backend gets the share of its weight.
func TestFit(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var before []netip.AddrPort
	for range 2000 {
		var loads []Load
		for _, at := range pods(1 + random.IntN(40)) {
			if random.IntN(3) > 0 || len(loads) == 0 {
				loads = append(loads, Load{At: at, Weight: uint16(1 + random.IntN(1+random.IntN(65535))), Live: random.IntN(99)})
			}
		}
		after := Fit(before, loads)
		if random.IntN(2) == 0 {
			after = Level(after, loads)
		}
		counts := map[netip.AddrPort]int{}
		for _, at := range after {
			counts[at]++
		}
		for _, l := range loads {
			if counts[l.At] == 0 {
				t.Fatalf("%s has no slot of %v", l.At, after)
			}
		}
		if len(after) != LeastSize(len(loads)) || len(counts) != len(loads) {
			t.Fatalf("%d slots of %v, want %d of %v", len(after), counts, LeastSize(len(loads)), loads)
		}
		if !slices.Equal(Fit(after, loads), after) {
			t.Fatal("slots that fit change")
		}
		before = after
	}
	loads := []Load{{At: pods(1)[0], Weight: 3}, {At: pods(2)[1], Weight: 1}}
	shares := [2]int{}
	for _, at := range Fit(nil, loads) {
		shares[slices.IndexFunc(loads, func(l Load) bool { return l.At == at })]++
	}
	if shares != [2]int{24, 8} {
		t.Errorf("backends of weights 3 and 1 have %v slots, want 24 and 8", shares)
	}
}
