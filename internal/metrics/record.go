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
	if s.Full() {
		m.Count("sluice_comparisons_total", string(s.Cause))
	}
	took, kind := s.Took(), "kubeproxy_sync_partial_proxy_rules_duration_seconds"
	if s.Full() {
		kind = "kubeproxy_sync_full_proxy_rules_duration_seconds"
	}
	for _, f := range m.opt.Families {
		m.Observe("kubeproxy_sync_proxy_rules_duration_seconds", took.Seconds(), f.String())
		if m.opt.PartialSyncs {
			m.Observe(kind, took.Seconds(), f.String())
		}
	}
	if s.Err != nil {
		m.Count("sluice_apply_failures_total")
		return
	}
	m.succeeded(s, s.Began.Add(took))
}

func (m *Metrics) succeeded(s proxy.Sync, at time.Time) {
	for _, f := range m.opt.Families {
		m.Set("kubeproxy_sync_proxy_rules_last_timestamp_seconds", seconds(at), f.String())
	}
	m.Observe("sluice_apply_steps", float64(s.Steps))
	m.Set("sluice_services_refused", float64(s.Refused))
	if s.Full() {
		m.Set("sluice_adopted_entries", float64(s.Adopted))
	}
	if s.Repair() {
		m.Count("sluice_repairs_total", string(s.Cause))
	}
	if s.In.Empty() {
		return
	}
	m.queued.Store(s.In.Last.UnixNano())
	m.Observe("sluice_event_to_kernel_duration_seconds", at.Sub(s.In.Since).Seconds())
	for _, t := range s.In.Triggers {
		if t.At.After(m.opt.Started) {
			m.Observe("kubeproxy_network_programming_duration_seconds", at.Sub(t.At).Seconds(), familyOf(t).String())
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
		m.counter("sluice_objects_rejected_total", kind, string(event.ClassOf(p))).Add(float64(p.Weight()))
	}
}

// Answered counts an answer of a page on the health port: healthz or livez.
func (m *Metrics) Answered(page string, code int) {
	m.Count("kubeproxy_proxy_"+page+"_total", strconv.Itoa(code))
}

func familyOf(t cluster.Trigger) route.Family {
	if t.IPv6 {
		return route.IPv6
	}
	return route.IPv4
}
