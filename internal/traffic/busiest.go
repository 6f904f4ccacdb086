package traffic

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// maxSeries is the number of ports that have their own series in the metrics.
	maxSeries = 50

	// A series is replaced at the earliest after seriesAge, by a port with at least busier times the load. So there are
	// at most maxSeries new series an hour.
	seriesAge = time.Hour
	busier    = 2

	// decay is the factor by which a load shrinks with each scrape.
	decay = 0.5
)

// Series are the counters of a port for the metrics. They only grow while the series exists.
type Series struct {
	Port     route.PortID // zero: all other ports
	Number   uint16       // of the Service port; 0 if unknown
	Counters plane.Traffic
}

// Scrape reads the counters. It returns the series of the busiest ports, sorted, and last the sum of all other ports.
//
// A port that becomes one of the busiest gets a series that begins at 0; its earlier connections remain in the sum of
// the others. A port that loses its series becomes one of the others. So each connection counts in exactly one series.
// All series begin at 0 at the first scrape.
func (m *Meter) Scrape(ctx context.Context, routes *route.Snapshot) ([]Series, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.read(ctx, routes); err != nil {
		return nil, err
	}
	var with, without []*sums
	var known [signals]bool
	for _, s := range m.ports {
		grown := s.total.minus(s.seen)
		s.load = s.load*decay + float64(grown[connections]+grown[unanswered]+grown[refused]+grown[failures])
		switch {
		case !s.since.IsZero():
			with = append(with, s)
		case s.load >= 1:
			without = append(without, s)
		}
		s.other = s.since.IsZero()
		for i := range known {
			known[i] = known[i] || s.known[i]
		}
	}
	choose(with, without, time.Now())
	var all []Series
	for id, s := range m.ports {
		if !s.since.IsZero() {
			all = append(all, Series{id, numberOf(routes, id), m.traffic(s.known, s.total.minus(s.begun))})
		}
		if m.scraped && (s.other || s.since.IsZero()) {
			m.others = m.others.plus(s.total.minus(s.seen))
		}
		s.seen = s.total
	}
	m.scraped = true
	slices.SortFunc(all, func(a, b Series) int { return a.Port.Compare(b.Port) })
	return append(all, Series{Counters: m.traffic(known, m.others)}), nil
}

// choose gives series to the busiest ports without one, while there is room or an old series is less busy.
func choose(with, without []*sums, now time.Time) {
	byLoad := func(a, b *sums) int { return cmp.Compare(b.load, a.load) }
	slices.SortFunc(without, byLoad)
	old := slices.DeleteFunc(slices.Clone(with), func(s *sums) bool { return now.Sub(s.since) < seriesAge })
	slices.SortFunc(old, byLoad)
	for n, s := range without {
		if len(with)+n >= maxSeries {
			last := len(old) - 1
			if last < 0 || s.load < busier*old[last].load {
				return
			}
			old[last].since = time.Time{}
			old = old[:last]
		}
		s.since, s.begun = now, s.total
	}
}

// traffic returns the known counters.
func (m *Meter) traffic(known [signals]bool, n counters) plane.Traffic {
	t := plane.Traffic{}
	for i, signal := range signalOrder() {
		if known[i] || m.opt.Failed != nil && (i == unanswered || i == refused) {
			t[signal] = n[i]
		}
	}
	return t
}

func (n counters) minus(o counters) counters {
	for i := range n {
		n[i] -= o[i]
	}
	return n
}

func (n counters) plus(o counters) counters {
	for i := range n {
		n[i] += o[i]
	}
	return n
}

// numberOf returns the number of a Service port; 0 if only its node port is programmed.
func numberOf(routes *route.Snapshot, id route.PortID) uint16 {
	svc := routes.Service(id.Service)
	if svc == nil {
		return 0
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if p.Name != id.Name || p.Protocol != id.Protocol {
			continue
		}
		for _, f := range p.Frontends {
			if f.Kind != route.NodePort {
				return f.Port
			}
		}
	}
	return 0
}
