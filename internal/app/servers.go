package app

import (
	"context"
	"io"
	"log/slog"
	"net/http"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/connlimit"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/kernel/listen"
	"github.com/sluice-proxy/sluice/internal/kernel/process"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/web"
)

// emulates is the version of Kubernetes whose kube-proxy this is like.
const emulates = "1.37"

// budget returns how many file descriptors each server may have. If the limit
// cannot be read, the usual smallest one counts.
func budget(log *slog.Logger) connlimit.Budget {
	limit, err := process.DescriptorLimit()
	if err != nil {
		limit = 1024
		log.Warn("Cannot read the limit of file descriptors; taking it for the usual one", "limit", limit, "error", err)
	}
	return connlimit.Split(limit)
}

// assembleServers makes the HTTP servers, at kube-proxy's addresses.
func (d *daemon) assembleServers(door listen.Opener) {
	c, share := d.o.Config, budget(d.o.Log)
	healthz := d.serverOptions("healthz", door, event.FailedToStartProxierHealthcheck)
	healthz.MaxConns = share.Health
	d.healthz = web.NewServer(healthz, d.healthSetting(c))
	diagnostics := d.serverOptions("metrics", door, event.FailedToStartMetricServer)
	diagnostics.MaxConns = share.Metrics
	d.diagnostics = web.NewServer(diagnostics, d.diagnosticsSetting(c))
}

func (d *daemon) serverOptions(name string, door listen.Opener, reason string) web.ServerOptions {
	return web.ServerOptions{
		Name: name, Listen: door.Listen, Log: d.o.Log, HardFail: d.o.Config.HardFail,
		Failed: func(err error) {
			if d.o.Config.HardFail {
				d.events.Record(event.StartFailed(reason, err))
			}
		},
	}
}

// setServers makes the servers serve as another configuration says.
func (d *daemon) setServers(c *config.Config) {
	d.healthz.Set(d.healthSetting(c))
	d.diagnostics.Set(d.diagnosticsSetting(c))
}

func (d *daemon) healthSetting(c *config.Config) web.Setting {
	return web.Setting{Addr: c.Healthz, Handler: signed(web.Health(d.health, d.metrics))}
}

func (d *daemon) diagnosticsSetting(c *config.Config) web.Setting {
	text, err := c.Effective()
	if err != nil {
		d.o.Log.Error("Cannot show the configuration", "error", err)
	}
	o := web.Options{
		Mode: c.Mode, Config: text, Flags: d.o.Flags,
		Metrics: d.metrics.Handler(), SLIs: d.metrics.SLIs(),
		Checked:   func() { d.metrics.Checked("ping", "healthz", nil) },
		Version:   d.o.Version,
		Emulates:  emulates,
		Started:   d.started,
		Status:    func(w io.Writer) { _ = d.inspect.Status(context.Background()).WriteText(w) },
		Profiling: c.Profiling,
	}
	if d.o.Logs != nil {
		o.SetVerbosity = d.o.Logs.SetVerbosity
	}
	return web.Setting{Addr: c.Metrics, Handler: signed(web.Diagnostics(o))}
}

// signed says in each answer whose it is: everything else looks like kube-proxy's.
func signed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", takeover.ServerHeader)
		h.ServeHTTP(w, r)
	})
}
