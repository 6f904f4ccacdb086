package app

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/sluice-proxy/sluice/internal/answer/page"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/fair"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/process"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/web"
)

// budget returns how many file descriptors each server may have. If the limit
// cannot be read, the usual smallest one counts.
func budget(log *slog.Logger) fair.Budget {
	limit, err := process.DescriptorLimit()
	if err != nil {
		limit = 1024
		log.Warn("Cannot read the limit of file descriptors; assuming the default", "limit", limit, "error", err)
	}
	return fair.Split(limit)
}

// assembleServers makes the HTTP servers, at kube-proxy's addresses.
func (d *daemon) assembleServers() {
	c, share := d.o.Config, budget(d.o.Log)
	healthz := d.serverOptions("healthz", event.FailedToStartProxierHealthcheck)
	healthz.Addr, healthz.MaxConns = c.Healthz, share.Health
	healthz.Handler = signed(web.Health(d.health.Verdict, d.metrics.Answered))
	d.healthz = web.NewServer(healthz)
	diagnostics := d.serverOptions("metrics", event.FailedToStartMetricServer)
	diagnostics.Addr, diagnostics.MaxConns = c.Metrics, share.Metrics
	diagnostics.Handler = signed(web.Diagnostics(d.diagnosticsOptions()))
	d.diagnostics = web.NewServer(diagnostics)
	draining := d.serverOptions("drain", event.FailedToStartDrainServer)
	if d.drains != nil {
		draining.Addr, draining.MaxConns = c.Drain, share.Metrics
		draining.Handler = signed(d.drains.Handler(d.inspect.PodAt))
	}
	d.draining = web.NewServer(draining)
}

func (d *daemon) serverOptions(name, reason string) web.ServerOptions {
	return web.ServerOptions{
		Name: name, Listen: d.listen.Listen, Log: d.o.Log, HardFail: d.o.Config.HardFail,
		Failed: func(err error) {
			if d.o.Config.HardFail {
				d.record(event.StartFailed(reason, err))
			}
		},
	}
}

func (d *daemon) diagnosticsOptions() web.Options {
	c := d.o.Config
	return web.Options{
		Mode: c.Mode, Config: c.Effective(), Flags: d.o.Flags,
		Metrics: d.metrics.Handler(), SLIs: d.metrics.SLIs(), Page: page.New(d.inspect),
		Checked:      d.metrics.Checked,
		Version:      d.o.Version,
		Emulates:     metrics.Kubernetes,
		Started:      d.started,
		Status:       func() string { return text.Printed(d.inspect.Status(context.Background())) },
		SetVerbosity: d.o.SetVerbosity,
		Profiling:    c.Profiling,
	}
}

// signed adds the Server header to each answer: everything else looks like kube-proxy's.
func signed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", takeover.ServerHeader)
		h.ServeHTTP(w, r)
	})
}
