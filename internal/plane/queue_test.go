package plane

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// byFronts divides changes by the number of frontends.
func byFrontends(piece int) Load {
	return Load{Cost: func(p *route.Port) int { return len(p.Frontends) }, Piece: piece}
}

// service makes one whose ports are given as "name:first-last" frontends, by port number.
func service(name string, ports ...string) *route.Service {
	svc := &route.Service{Name: cluster.Name{Namespace: "ns", Name: name}}
	for _, text := range ports {
		p := route.Port{Protocol: cluster.TCP, Family: route.IPv4}
		var first, last uint16
		if _, err := fmt.Sscanf(strings.Replace(text, ":", " ", 1), "%s %d-%d", &p.Name, &first, &last); err != nil {
			panic(err)
		}
		for n := first; n <= last; n++ {
			p.Frontends = append(p.Frontends, route.Frontend{Addr: netip.MustParseAddr("10.0.0.1"), Port: n})
		}
		svc.Ports = append(svc.Ports, p)
	}
	return svc
}

// text prints a change as "name old>new", each as ports and the frontends of each.
func text(touches []route.Touch) string {
	side := func(svc *route.Service) string {
		if svc == nil {
			return "-"
		}
		var list []string
		for _, p := range svc.Ports {
			list = append(list, fmt.Sprintf("%s:%d-%d", p.Name, p.Frontends[0].Port, p.Frontends[len(p.Frontends)-1].Port))
		}
		slices.Sort(list)
		return strings.Join(list, ",")
	}
	var list []string
	for _, t := range touches {
		list = append(list, fmt.Sprintf("%s %s>%s", t.Name.Name, side(t.Old), side(t.New)))
	}
	return strings.Join(list, "; ")
}

// drain returns the batches that are left.
func drain(q *Queue) (batches []string) {
	for !q.Empty() {
		batches = append(batches, text(q.Next()))
	}
	return batches
}

func TestQueueBatches(t *testing.T) {
	change := func(old, now *route.Service) route.Touch {
		if now != nil {
			return route.Touch{Name: now.Name, Old: old, New: now}
		}
		return route.Touch{Name: old.Name, Old: old}
	}
	for _, tt := range []struct {
		name  string
		piece int
		add   []route.Touch
		want  []string
	}{
		{"without bounds everything is one batch", 0, []route.Touch{
			change(nil, service("b", "x:1-9", "y:10-19")), change(nil, service("a", "z:30-30")),
		}, []string{"a ->z:30-30; b ->x:1-9,y:10-19"}},
		{"small Services come before the pieces of a large one and beside them", 4, []route.Touch{
			change(nil, service("large", "x:1-3", "y:4-6", "z:7-9")), change(nil, service("a", "p:20-21")),
			change(nil, service("b", "p:30-32")),
		}, []string{"a ->p:20-21; large ->x:1-3", "b ->p:30-32; large ->y:4-6", "large ->z:7-9"}},
		{"small Services come in the order in which they were added", 3, []route.Touch{
			change(nil, service("a", "p:1-3")), change(nil, service("b", "p:4-5")), change(nil, service("c", "p:6-6")),
		}, []string{"a ->p:1-3", "b ->p:4-5; c ->p:6-6"}},
		{"Services that stay come before new and deleted ones", 4, []route.Touch{
			change(nil, service("a", "p:1-2")), change(nil, service("b", "p:3-4")), change(service("d", "p:7-8"), nil),
			change(service("c", "p:5-5"), service("c", "p:6-6")),
		}, []string{"a ->p:1-2; c p:5-5>p:6-6", "b ->p:3-4; d p:7-8>-"}},
		{"large Services take turns", 3, []route.Touch{
			change(nil, service("a", "x:1-2", "y:3-4", "z:5-6")), change(nil, service("b", "x:11-12", "y:13-15")),
		}, []string{"a ->x:1-2", "b ->x:11-12", "a ->y:3-4", "b ->y:13-15", "a ->z:5-6"}},
		{
			"a port is never divided", 2,
			[]route.Touch{change(nil, service("large", "x:1-9", "y:10-11"))},
			[]string{"large ->y:10-11", "large ->x:1-9"},
		},
		{"of a large Service only ports that differ", 3, []route.Touch{
			change(service("large", "x:1-3", "y:4-6", "z:7-9"), service("large", "x:1-3", "y:4-5", "z:7-9")),
		}, []string{"large y:4-6>y:4-5"}},
		{
			"the end of a large Service", 3,
			[]route.Touch{change(service("large", "x:1-3", "y:4-6"), nil)},
			[]string{"large x:1-3>-", "large y:4-6>-"},
		},
		{"a frontend that moves within a Service", 3, []route.Touch{
			change(service("large", "x:1-2", "y:4-6"), service("large", "x:1-2", "y:5-6", "z:4-4")),
		}, []string{"large y:4-6>y:5-6,z:4-4"}},
		{"a frontend that moves to a smaller Service", 3, []route.Touch{
			change(service("large", "x:1-3", "y:4-6", "z:7-9"), nil), change(nil, service("a", "p:5-5")),
		}, []string{"a ->p:5-5; large x:1-3,y:4-6>-", "large z:7-9>-"}},
		{"a chain of moves is one batch", 1, []route.Touch{
			change(service("a", "p:1-1"), service("a", "p:2-2")), change(service("b", "p:2-2"), service("b", "p:3-3")),
			change(service("c", "p:3-3"), service("c", "p:1-1")),
		}, []string{"a p:1-1>p:2-2; b p:2-2>p:3-3; c p:3-3>p:1-1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := NewQueue(byFrontends(tt.piece))
			for _, touch := range tt.add {
				q.Add(touch)
			}
			if got := drain(q); !slices.Equal(got, tt.want) {
				t.Errorf("batches\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
			}
			if len(q.before)+len(q.after) > 0 {
				t.Errorf("%d frontends are kept after the last batch", len(q.before)+len(q.after))
			}
		})
	}
}

// A Service that changes again while it is written continues from the part that is written.
func TestQueueOfAServiceUnderway(t *testing.T) {
	q := NewQueue(byFrontends(3))
	first, second := service("large", "x:1-3", "y:4-6", "z:7-9"), service("large", "x:1-2", "z:7-9")
	q.Add(route.Touch{Name: first.Name, New: first})
	if got := text(q.Next()); got != "large ->x:1-3" {
		t.Fatalf("first batch %s", got)
	}
	if !q.Has(first.Name) || q.HasSmall() {
		t.Errorf("Has = %v, HasSmall = %v; want a large Service that waits", q.Has(first.Name), q.HasSmall())
	}
	if got := q.Underway()[first.Name]; len(got.Ports) != 1 || got.Ports[0].Name != "x" {
		t.Errorf("Underway returns %v, want port x", got)
	}
	q.Add(route.Touch{Name: first.Name, Old: first, New: second})
	want := []string{"large x:1-3>x:1-2", "large >z:7-9"}
	got := drain(q)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("batches %q, want %q", got, want)
	}
}

// A change that undoes itself still reaches the followers.
func TestQueueOfAChangeToNothing(t *testing.T) {
	q := NewQueue(byFrontends(1))
	svc := service("large", "x:1-3", "y:4-6")
	q.Add(route.Touch{Name: svc.Name, Old: svc, New: svc})
	if got := drain(q); len(got) != 1 {
		t.Errorf("batches %q, want one", got)
	}
}

// Whatever changes in whatever order: applied batch by batch, no two Services ever
// have the same frontend, and in the end everything is as it should be.
func TestQueueAtRandom(t *testing.T) {
	for seed := range seeds.Of(t, 300) {
		r := rand.New(rand.NewPCG(seed, 0))
		q := NewQueue(byFrontends(r.IntN(5)))
		want, kernel := map[string]*route.Service{}, model{}
		owner := map[uint16]string{}
		for range 60 {
			name := string(rune('a' + r.IntN(4)))
			for _, n := range slices.Collect(owned(owner, name)) {
				if r.IntN(2) == 0 {
					delete(owner, n)
				}
			}
			affected := map[string]bool{name: true}
			for range r.IntN(5) {
				n := uint16(1 + r.IntN(12))
				if before, taken := owner[n]; taken {
					affected[before] = true
				}
				owner[n] = name
			}
			for other := range affected {
				now := random(r, other, owner)
				q.Add(route.Touch{Name: cluster.Name{Namespace: "ns", Name: other}, Old: want[other], New: now})
				want[other] = now
			}
			if r.IntN(2) == 0 && !q.Empty() {
				if err := kernel.apply(q.Next()); err != nil {
					t.Fatal(err)
				}
			}
		}
		for !q.Empty() {
			if err := kernel.apply(q.Next()); err != nil {
				t.Fatal(err)
			}
		}
		for name, svc := range want {
			if got, wanted := kernel.text(name), (model{}).with(svc).text(name); got != wanted {
				t.Fatalf("%s has %s, want %s", name, got, wanted)
			}
		}
	}
}

func owned(owner map[uint16]string, name string) func(func(uint16) bool) {
	return func(yield func(uint16) bool) {
		for n := range uint16(13) {
			if owner[n] == name && !yield(n) {
				return
			}
		}
	}
}

// random arranges what a Service owns in up to three ports; nil if that is nothing.
func random(r *rand.Rand, name string, owner map[uint16]string) *route.Service {
	ports := map[string][]uint16{}
	for n := range owned(owner, name) {
		p := []string{"x", "y", "z"}[r.IntN(3)]
		ports[p] = append(ports[p], n)
	}
	if len(ports) == 0 {
		return nil
	}
	svc := service(name)
	for _, p := range []string{"x", "y", "z"} {
		if len(ports[p]) == 0 {
			continue
		}
		port := route.Port{Name: p, Protocol: cluster.TCP, Family: route.IPv4}
		for _, n := range ports[p] {
			port.Frontends = append(port.Frontends, route.Frontend{Addr: netip.MustParseAddr("10.0.0.1"), Port: n})
		}
		svc.Ports = append(svc.Ports, port)
	}
	return svc
}

// model is a kernel that holds "service/port" by frontend, and refuses what does not fit.
type model map[uint16]string

func (m model) with(svc *route.Service) model {
	if svc != nil {
		_ = m.apply([]route.Touch{{Name: svc.Name, New: svc}})
	}
	return m
}

func (m model) apply(touches []route.Touch) error {
	for _, t := range touches {
		for _, p := range portsOf(t.Old) {
			for _, f := range p.Frontends {
				if at := t.Name.Name + "/" + p.Name; m[f.Port] != at {
					return fmt.Errorf("%s: frontend %d is of %q, not of %s", text(touches), f.Port, m[f.Port], at)
				}
				delete(m, f.Port)
			}
		}
	}
	for _, t := range touches {
		for _, p := range portsOf(t.New) {
			for _, f := range p.Frontends {
				if m[f.Port] != "" {
					return fmt.Errorf("%s: frontend %d is of %s already", text(touches), f.Port, m[f.Port])
				}
				m[f.Port] = t.Name.Name + "/" + p.Name
			}
		}
	}
	return nil
}

func (m model) text(service string) string {
	var list []string
	for n, at := range m {
		if strings.HasPrefix(at, service+"/") {
			list = append(list, fmt.Sprintf("%s:%d", at, n))
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}
