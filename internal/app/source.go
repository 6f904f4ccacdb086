package app

import (
	"context"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/source/kube"
	"github.com/sluice-proxy/sluice/internal/source/manifest"
	"github.com/sluice-proxy/sluice/internal/source/state"
)

// stated is a Source that tells how it is doing.
type stated interface {
	Source
	State() state.State
}

// recorder brings Events to people while it runs.
type recorder interface {
	event.Recorder
	Run(ctx context.Context) error
}

// openSource builds what feeds the store, and where Events go: manifests and
// nowhere, or an API server.
func (d *daemon) openSource() (stated, recorder, error) {
	if len(d.o.Config.Manifests) > 0 {
		source := openManifests(d.store, d.o, d.report, manifest.DaemonLimits())
		return source, nowhere{}, source.Check() // before anything is touched
	}
	c := d.o.Config
	kube.MeasureClients(d.metrics.Client())
	client, err := dial(c)
	if err != nil {
		return nil, nil, err
	}
	source := kube.New(d.store, kube.Options{
		Client: client, NodeName: c.NodeName, AllowExternalIPs: c.ExternalIPs, Report: d.report, Log: d.o.Log,
	})
	return source, kube.NewRecorder(kube.RecorderOptions{Client: client, NodeName: c.NodeName, Log: d.o.Log}), nil
}

// dial returns a client of the API server. It does not connect yet.
func dial(c *config.Config) (*kube.Client, error) {
	return kube.Dial(kube.Connection{
		Kubeconfig:         c.Client.Kubeconfig,
		Master:             c.Client.Master,
		ContentType:        c.Client.ContentType,
		AcceptContentTypes: c.Client.AcceptContentTypes,
		QPS:                c.Client.QPS,
		Burst:              c.Client.Burst,
		UserAgent:          "sluice",
	})
}

func openManifests(store *cluster.Store, o Options, report reporter, limits manifest.Limits) *manifest.Source {
	return manifest.New(store, manifest.Options{
		Paths: o.Config.Manifests, Stdin: o.Stdin, NodeName: o.Config.NodeName,
		AllowExternalIPs: o.Config.ExternalIPs, Report: report, Limits: limits,
	})
}

// nowhere is where Events go when there is no cluster to tell.
type nowhere struct{ event.Discard }

// Run waits for the context to end.
func (nowhere) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
