package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Synced records an attempt to write (proxy.Options.Observe).
func (m *Metrics) Synced(s proxy.Sync) {
	if s.Full() {
		m.comparisons.WithLabelValues(string(s.Cause)).Inc()
	}
	took := s.Compile + s.Apply
	for _, f := range m.opt.Families {
		m.synced.WithLabelValues(f.String()).Observe(took.Seconds())
		if m.opt.PartialSyncs {
			m.kindOf(s).WithLabelValues(f.String()).Observe(took.Seconds())
		}
	}
	if s.Err != nil {
		m.failures.WithLabelValues().Inc()
		return
	}
	m.succeeded(s, s.Began.Add(took))
}

// kindOf returns the family that counts writes like this one.
func (m *Metrics) kindOf(s proxy.Sync) *prometheus.HistogramVec {
	if s.Full() {
		return m.full
	}
	return m.partial
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

func familyOf(t cluster.Trigger) route.Family {
	if t.IPv6 {
		return route.IPv6
	}
	return route.IPv4
}
