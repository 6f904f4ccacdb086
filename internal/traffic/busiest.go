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
	// maxSeries is how many ports have series of their own in the metrics.
	maxSeries = 50

	// seriesAge is how long a port keeps its series, and busier how many times as many connections another port must have
	// to take its place. So there are at most maxSeries new series an hour.
	seriesAge = time.Hour
	busier    = 2

	// decay is how much of a load is left after a scrape.
	decay = 0.5
)

// others are the ports without a series.
type others struct {
	total numbers
	begun bool // there was a scrape
}

// Series are the counters of a port for the metrics. They only grow while the series exists.
type Series struct {
	Port     route.PortID // zero: all other ports
	Number   uint16       // of the Service port; 0: not known
	Counters plane.Traffic
}

// Scrape reads the counters and returns those of the busiest ports, and the sum of the others last, sorted.
//
// A port that becomes one of the busiest gets a series that begins at 0; what it had before stays with the others. A
// port that loses its series is one of the others from then on. So the rates of all series add up to that of the node:
// no connection is counted twice, or in none. All begin at 0 at the first scrape.
func (m *Meter) Scrape(ctx context.Context, routes *route.Snapshot) ([]Series, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.read(ctx, routes); err != nil {
		return nil, err
	}
	var with, without []*sums
	var known [places]bool
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
			all = append(all, Series{id, numberOf(routes, id), m.signals(s.known, s.total.minus(s.begun))})
		}
		if m.others.begun && (s.other || s.since.IsZero()) {
			m.others.total = m.others.total.plus(s.total.minus(s.seen))
		}
		s.seen = s.total
	}
	m.others.begun = true
	slices.SortFunc(all, func(a, b Series) int { return a.Port.Compare(b.Port) })
	return append(all, Series{Counters: m.signals(known, m.others.total)}), nil
}

// choose gives series to ports, of which some have one and others have none.
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

// signals returns those that are known.
func (m *Meter) signals(known [places]bool, n numbers) plane.Traffic {
	t := plane.Traffic{}
	for i, signal := range counters() {
		if known[i] || m.opt.Failed != nil && (i == unanswered || i == refused) {
			t[signal] = n[i]
		}
	}
	return t
}

func (n numbers) minus(o numbers) numbers {
	for i := range n {
		n[i] -= o[i]
	}
	return n
}

func (n numbers) plus(o numbers) numbers {
	for i := range n {
		n[i] += o[i]
	}
	return n
}

// numberOf returns the number of a Service port; 0: only its node port is programmed.
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
