package planetest

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Memory is a mechanism that stores which Services it should serve, and serves none. Its plane is the smallest one that
// uses every hook of a plane.Kind: a deleted Service drains before it is removed, and nothing survives the process.
type Memory struct {
	mu    sync.Mutex
	holds map[cluster.Name]entry
}

// entry is the state of a Service in Memory.
type entry struct {
	ports string
	until time.Time // the end of its drain; zero if it does not drain
}

// drain is the time that a deleted Service drains.
const drain = 100 * time.Millisecond

// Kind returns the plane for this mechanism.
func (m *Memory) Kind() plane.Kind {
	untouched := plane.Behaviour{Verdict: plane.Untouched, Why: "plane memory changes no traffic"}
	return plane.Kind{
		Mode: "memory", Owned: "the memory of the process",
		Facts: plane.Facts{Name: "memory", OtherPort: untouched, Ping: untouched, Unallocated: untouched},
		Probe: func(context.Context, int) (plane.Support, error) { return plane.Support{IPv4: true, IPv6: true}, nil },
		Open: func(_ context.Context, s plane.Setup) (*plane.Opened, error) {
			count := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "memory_services", Help: "Services."}, m.size)
			return &plane.Opened{
				Plane: m, Due: m.due,
				Parts:  []plane.Part{{Run: carry(s.Log), Metrics: []prometheus.Collector{count}}},
				Reader: func(context.Context) (plane.Plane, func(), error) { return m, func() {}, nil },
			}, nil
		},
		Preview: func(plane.Setup) plane.Plane { return &Memory{} },
		Remove:  func(context.Context, plane.Setup) ([]string, error) { return nil, nil },
	}
}

// carry stands for code that forwards traffic in the process.
func carry(log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		log.Info("Carrying traffic")
		<-ctx.Done()
		log.Info("Carrying no traffic")
		return nil
	}
}

func (m *Memory) size() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return float64(len(m.holds))
}

// due returns when the first drain ends; zero: no Service drains.
func (m *Memory) due() (first time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.holds {
		if !e.until.IsZero() && (first.IsZero() || e.until.Before(first)) {
			first = e.until
		}
	}
	return first
}

// Refresh implements plane.Plane. Every Plan compares everything anyway.
func (m *Memory) Refresh(context.Context) error { return nil }

// Watch implements plane.Plane.
func (m *Memory) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	return plane.Poll(ctx, time.Hour, subscribed, report)
}

// Plan implements plane.Plane.
func (m *Memory) Plan(c route.Change) plane.Plan {
	m.mu.Lock()
	defer m.mu.Unlock()
	plan := &memoryPlan{memory: m, next: map[cluster.Name]entry{}}
	now := time.Now()
	for name, svc := range c.Table.Services {
		if svc.Ignored != "" {
			continue
		}
		plan.next[name] = entry{ports: fmt.Sprint(svc.Ports)}
		if m.holds[name] != plan.next[name] {
			plan.step("hold", name)
		}
	}
	for name, e := range m.holds {
		_, wanted := plan.next[name]
		switch {
		case wanted:
		case e.until.IsZero():
			plan.next[name] = entry{e.ports, now.Add(drain)}
			plan.step("drain", name)
		case now.Before(e.until):
			plan.next[name] = e
		default:
			plan.step("forget", name)
		}
	}
	slices.Sort(plan.steps)
	return plan
}

type memoryPlan struct {
	memory *Memory
	next   map[cluster.Name]entry
	steps  []string
}

func (p *memoryPlan) step(verb string, name cluster.Name) {
	p.steps = append(p.steps, verb+" "+name.String()+"\n")
}

func (p *memoryPlan) Steps() int     { return len(p.steps) }
func (p *memoryPlan) Kept() int      { return 0 }
func (p *memoryPlan) String() string { return strings.Join(p.steps, "") }

func (p *memoryPlan) Apply(context.Context) error {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	p.memory.holds = maps.Clone(p.next)
	return nil
}
