package app

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/eject/watch"
	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/reload"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/web"
)

// status returns the status of all parts.
func (d *daemon) status(context.Context) inspect.Status {
	s := inspect.Status{
		Version: d.o.Version, PID: os.Getpid(), Since: d.started,
		Health:        d.health.Verdict().Summary(),
		Mode:          d.mode(),
		Source:        inspect.Source{Kind: "API server", State: d.source.State()},
		Contest:       d.node.Loop().Contest(),
		Families:      text.Strings(d.families),
		KubeProxy:     d.takeover.State().Beside(),
		Takeover:      d.takeover.State().Lines(),
		Configuration: configuration(d.reload.State(), d.o.Warnings),
		Direct:        d.direct(),
		Servers:       []web.State{d.healthz.State(), d.diagnostics.State()},
	}
	if len(d.o.Config.Manifests) > 0 {
		s.Source.Kind = "manifests"
	}
	if d.o.Config.Drain.IsValid() {
		s.Servers = append(s.Servers, d.draining.State())
	}
	if d.plane.WatchTrouble != nil {
		s.WatchTrouble = d.plane.WatchTrouble()
	}
	for _, e := range d.host.Effects() {
		h := inspect.HostSetting{Name: e.Name, Want: e.Wanted, Was: e.Was, Is: e.Is}
		if e.Err != nil {
			h.Error = e.Err.Error()
		}
		s.HostSettings = append(s.HostSettings, h)
	}
	for _, f := range d.ports.Failing() {
		s.HealthPorts = append(s.HealthPorts, inspect.HealthPort{
			Service: f.Service.String(), Port: f.At.Port(), Error: f.Err.Error(),
		})
	}
	return s
}

// mode returns the mode that serves.
func (d *daemon) mode() inspect.Mode {
	m := inspect.Mode{
		Name: d.o.Config.Mode, Reason: d.o.Reason, How: d.plane.How, Transient: !d.o.kind().Persistent,
	}
	if f := d.plane.Fallback; f.Mode != "" {
		m.Configured, m.Name, m.Fallback = m.Name, f.Mode, f.Reason
	}
	return m
}

func configuration(s reload.State, warnings []string) inspect.Configuration {
	c := inspect.Configuration{File: s.File, Loaded: s.LoadedAt, Due: s.Due, Reloads: s.Count.Accepted, Warnings: warnings}
	if s.Refused != nil {
		c.Refused, c.RefusedAt = s.Refused.Error(), s.RefusedAt
	}
	return c
}

// direct returns to which nodes this one passes connections on; nil: none.
func (d *daemon) direct() *plane.Direct {
	if d.plane.Direct == nil {
		return nil
	}
	return d.plane.Direct()
}

// answerTime bounds how long an answer waits while the proxy writes.
const answerTime = 10 * time.Second

// readings returns the values that a scrape of the metrics reads.
func (d *daemon) readings() metrics.Readings {
	var ejected watch.Counts
	var waits []drain.Running
	if d.table != nil {
		ejected, waits = d.ejection.Counts(), d.drains.Running()
	}
	return metrics.Readings{
		Ejections: ejected.Ejections, Ejected: ejected.Ejected,
		Direct:             d.direct(),
		Totals:             d.store.Totals(),
		Backlog:            d.store.Backlog(),
		Sizes:              d.sizes.Sizes(),
		Connected:          d.source.State().Connected,
		Reloads:            d.reload.State().Count,
		ConfigWarnings:     len(d.o.Warnings),
		Takeover:           d.takeover.State(),
		HealthPortFailures: len(d.ports.Failing()),
		HostSettingsFailed: len(slices.DeleteFunc(d.host.Effects(), func(e host.Effect) bool { return e.Err == nil })),
		DrainWaits:         len(waits),
		Contest:            d.node.Loop().Contest(),
		Traffic:            d.traffic(),
	}
}
