package metrics

import (
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Synced records an attempt to write (proxy.Options.Observe).
func (m *Metrics) Synced(s proxy.Sync) {
	sort := m.partial
	if s.Full() {
		sort = m.full
		m.comparisons.WithLabelValues(string(s.Cause)).Inc()
	}
	took := s.Compile + s.Apply
	for _, f := range m.opt.Families {
		m.synced.WithLabelValues(f.String()).Observe(took.Seconds())
		sort.WithLabelValues(f.String()).Observe(took.Seconds())
	}
	if s.Err != nil {
		m.failed()
		return
	}
	m.succeeded(s, s.Began.Add(took))
}

func (m *Metrics) failed() {
	m.failures.WithLabelValues().Inc()
	for _, f := range m.opt.Families {
		for _, c := range m.failing {
			c.WithLabelValues(f.String()).Inc()
		}
	}
}

func (m *Metrics) succeeded(s proxy.Sync, at time.Time) {
	for _, f := range m.opt.Families {
		m.last.WithLabelValues(f.String()).Set(seconds(at))
	}
	m.steps.WithLabelValues().Observe(float64(s.Steps))
	m.refused.WithLabelValues().Set(float64(s.Refused))
	if s.Full() {
		m.adopted.WithLabelValues().Set(float64(s.Adopted))
	}
	if s.Repair() {
		m.repairs.WithLabelValues(string(s.Cause)).Inc()
	}
	if s.In.Empty() {
		return
	}
	m.queued.Store(s.In.Last.UnixNano())
	m.latency.WithLabelValues().Observe(at.Sub(s.In.Since).Seconds())
	for _, t := range s.In.Triggers {
		if t.At.After(m.opt.Started) {
			m.programming.WithLabelValues(familyOf(t).String()).Observe(at.Sub(t.At).Seconds())
		}
	}
}

// Rules records a write of the mode iptables: how many rules of ours a table of a
// family has now, and how many of them were sent.
func (m *Metrics) Rules(f route.Family, table string, total, sent int) {
	m.rules.WithLabelValues(table, f.String()).Set(float64(total))
	m.sent.WithLabelValues(table, f.String()).Set(float64(sent))
}

// RestoreFailed counts a failure of iptables-restore for a family.
func (m *Metrics) RestoreFailed(f route.Family) { m.restores.WithLabelValues(f.String()).Inc() }

// PartialRestoreFailed counts the same for a restore of changes alone.
func (m *Metrics) PartialRestoreFailed(f route.Family) {
	m.RestoreFailed(f)
	m.partialRestores.WithLabelValues(f.String()).Inc()
}

// Rejected counts problems with objects, each once.
func (m *Metrics) Rejected(problems []route.Problem) {
	for _, p := range problems {
		kind := kindOther
		if object, ok := event.ObjectOf(p); ok {
			kind = object.Kind
		}
		m.rejected.WithLabelValues(kind, string(event.ClassOf(p))).Add(float64(p.Weight()))
	}
}

// Healthz counts an answer of /healthz on the health port.
func (m *Metrics) Healthz(code int) { m.healthz.WithLabelValues(strconv.Itoa(code)).Inc() }

// Livez counts an answer of /livez on the health port.
func (m *Metrics) Livez(code int) { m.livez.WithLabelValues(strconv.Itoa(code)).Inc() }

// Looked records one search for stale flows: its duration, and how many flows of each
// family it ended.
func (m *Metrics) Looked(took time.Duration, ended map[route.Family]int) {
	for _, f := range m.opt.Families {
		m.looked.WithLabelValues(f.String()).Observe(took.Seconds())
		m.ended.WithLabelValues(f.String()).Add(float64(ended[f]))
	}
}

func familyOf(t cluster.Trigger) route.Family {
	if t.IPv6 {
		return route.IPv6
	}
	return route.IPv4
}
