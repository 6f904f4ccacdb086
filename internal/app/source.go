package app

import (
	"context"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/source"
	"github.com/sluice-proxy/sluice/internal/source/files"
	"github.com/sluice-proxy/sluice/internal/source/kube"
)

// statefulSource is a Source with a state.
type statefulSource interface {
	Source
	State() source.State
}

// recorder records Events while it runs.
type recorder interface {
	event.Recorder
	Run(ctx context.Context) error
}

// openSource returns the source of the store and the recorder of Events: those of manifests,
// which discard Events, or those of an API server.
func (d *daemon) openSource() (statefulSource, recorder, error) {
	if len(d.o.Config.Manifests) > 0 {
		files := openManifests(d.store, d.o, d.report, files.DaemonLimits())
		return files, noEvents{}, files.Check() // before anything is changed
	}
	c := d.o.Config
	kube.MeasureClients(d.metrics.Client())
	client, err := dial(c)
	if err != nil {
		return nil, nil, err
	}
	api := kube.New(d.store, kube.Options{
		Client: client, NodeName: c.NodeName, AllowExternalIPs: c.ExternalIPs, Report: d.report, Log: d.o.Log,
	})
	return api, kube.NewRecorder(kube.RecorderOptions{Client: client, NodeName: c.NodeName, Log: d.o.Log}), nil
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

func openManifests(store *cluster.Store, o Options, report reporter, limits files.Limits) *files.Source {
	return files.New(store, files.Options{
		Paths: o.Config.Manifests, Stdin: o.Stdin, NodeName: o.Config.NodeName,
		AllowExternalIPs: o.Config.ExternalIPs, LoopbackEndpoints: o.Config.Unprivileged(), Report: report, Limits: limits,
	})
}

// noEvents discards Events where there is no API server.
type noEvents struct{ event.Discard }

// Run waits for the context to end.
func (noEvents) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// keptEvents also keeps Events for commands.
type keptEvents struct {
	recorder

	history *inspect.History
}

// Record implements event.Recorder.
func (k keptEvents) Record(e event.Event) {
	k.history.Record(e)
	k.recorder.Record(e)
}
