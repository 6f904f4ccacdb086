package app

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/preflight"
	"github.com/sluice-proxy/sluice/internal/source/kube"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// preflightTime bounds the wait for the API server, and that for a daemon.
const preflightTime = 3 * time.Second

// Preflight reads the facts that a start would depend on, and changes nothing. It first makes the tests of the mode,
// as a start does: they may make the kernel load modules.
func Preflight(ctx context.Context, o Options) preflight.Facts {
	kind := o.kind()
	support, probeErr := kind.Probe(ctx, o.NetNS)
	f := preflight.Read(ctx, o.Config, o.NetNS)
	f.Version, f.Tested, f.Mode, f.Reason = o.Version, metrics.Kubernetes, o.Config.Mode, o.Reason
	f.Probe, f.Notes = preflight.TrialOf(probeErr), support.Notes
	if kind.Beyond != nil {
		trial := preflight.TrialOf(kind.Beyond(o.setup()))
		f.Beyond = &trial
	}
	if !o.Config.Unprivileged() {
		f.Others, f.OthersErr = o.others(ctx, kind)
	}
	f.Sluice = o.running(ctx)
	ctx, cancel := context.WithTimeout(ctx, preflightTime)
	defer cancel()
	f.Source = o.serverVersion(ctx)
	return f
}

// running returns the daemon that serves already, or nil. One in another container has the lock, but does not answer
// here.
func (o Options) running(ctx context.Context) *preflight.Daemon {
	ctx, cancel := context.WithTimeout(ctx, preflightTime)
	defer cancel()
	var s inspect.Status
	err := admin.Dial(o.control()).Get(ctx, "/status", nil, &s)
	if _, silent := errors.AsType[*admin.UnansweredError](err); silent {
		return &preflight.Daemon{}
	}
	if err != nil {
		return nil
	}
	return &preflight.Daemon{Version: s.Version, Mode: s.Mode.Name, PID: s.PID}
}

func (o Options) others(ctx context.Context, kind plane.Kind) (takeover.Found, preflight.Trial) {
	search := o.takeover()
	search.Ours = mechanisms(kind.KubeProxyRules)
	found, err := takeover.Search(ctx, search)
	return found, preflight.TrialOf(err)
}

func (o Options) serverVersion(ctx context.Context) preflight.Source {
	if len(o.Config.Manifests) > 0 {
		return preflight.Source{Manifests: true}
	}
	s := preflight.Source{Named: o.Config.Client.Kubeconfig != "" || o.Config.Client.Master != ""}
	client, err := kube.Dial(kube.Connection(o.Config.Client))
	if err == nil {
		s.Server = client.Server()
		s.Version, err = client.Version(ctx)
	}
	s.Trial = preflight.TrialOf(err)
	return s
}
