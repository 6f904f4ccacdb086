package ebpf

import (
	"math"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

func pods(n int) (list []netip.AddrPort) {
	for i := range n {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(1 + i%250)}), 8080))
	}
	return list
}

func countOf(slots []netip.AddrPort) map[netip.AddrPort]int {
	count := map[netip.AddrPort]int{}
	for _, b := range slots {
		count[b]++
	}
	return count
}

func tableOf(p *route.Port) []netip.AddrPort {
	port := newPort(cluster.Name{}, p)
	return port.table(&port.pools[route.Cluster])
}

// The slots of each backend are proportional to its weight, with an error of a hundredth of all slots.
func TestMaglevShares(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 40, 41, 160} {
		for name, weight := range map[string]func(i int) uint16{
			"equal":     func(int) uint16 { return 1 },
			"unequal":   func(i int) uint16 { return uint16(1 + i%3) },
			"very much": func(i int) uint16 { return uint16(1 + i%2*65534) },
		} {
			p := &route.Port{Scheduler: "maglev", Cluster: pods(n), Weights: map[netip.AddrPort]uint16{}}
			total := 0
			for i, b := range p.Cluster {
				p.Weights[b] = weight(i)
				total += int(weight(i))
			}
			slots := tableOf(p)
			for i, b := range p.Cluster {
				want := float64(weight(i)) / float64(total)
				if got := float64(countOf(slots)[b]) / float64(len(slots)); math.Abs(got-want) > 0.01 {
					t.Errorf("%d backends of %s weight: backend %d has a share of %.3f, want %.3f", n, name, i, got, want)
				}
			}
		}
	}
}

func TestWeightedSlots(t *testing.T) {
	b := pods(3)
	for _, c := range []struct {
		name    string
		weights [3]uint16
		want    [3]int
	}{
		{"equal", [3]uint16{7, 7, 7}, [3]int{1, 1, 1}},
		{"proportional", [3]uint16{10, 20, 30}, [3]int{1, 2, 3}},
		{"0 gets none", [3]uint16{0, 1, 2}, [3]int{0, 1, 2}},
		{"large ones are bounded", [3]uint16{65535, 32768, 1}, [3]int{256, 128, 1}},
		{"none", [3]uint16{}, [3]int{}},
	} {
		p := &route.Port{
			Cluster: b, Weights: map[netip.AddrPort]uint16{b[0]: c.weights[0], b[1]: c.weights[1], b[2]: c.weights[2]},
		}
		got := countOf(tableOf(p))
		for i := range b {
			if got[b[i]] != c.want[i] {
				t.Errorf("%s: backend %d has %d slots, want %d", c.name, i, got[b[i]], c.want[i])
			}
		}
	}
}

// Backends that are added to others start slowly; the first backends of a pool do not.
func TestRamps(t *testing.T) {
	service := func(backends []netip.AddrPort) *route.Service {
		return &route.Service{Ports: []route.Port{{
			Name: "http", Protocol: cluster.TCP, Cluster: backends, SlowStart: 30e9, Frontends: make([]route.Frontend, 1),
		}}}
	}
	b := pods(3)
	for _, c := range []struct {
		name    string
		old, is *route.Service
		want    int
	}{
		{"a new Service", nil, service(b), 0},
		{"the first ones", service(nil), service(b), 0},
		{"one more", service(b[:2]), service(b), 1},
		{"one less", service(b), service(b[:2]), 0},
	} {
		r := ramps{}
		r.add(c.old, c.is)
		if got := len(r[30e9]); got != c.want {
			t.Errorf("%s: %d new backends, want %d", c.name, got, c.want)
		}
	}
}
