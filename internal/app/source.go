package app

import (
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/source/files"
	"github.com/sluice-proxy/sluice/internal/source/kube"
)

// statefulSource is a Source with a state.
type statefulSource interface {
	Source
	State() source.State
}

// openSource opens the source of the store: manifests, or an API server, which also gets Events.
func (d *daemon) openSource() error {
	if len(d.o.Config.Manifests) > 0 {
		files := openManifests(d.store, d.o, d.report, files.DaemonLimits())
		d.source = files
		return files.Check() // before anything is changed
	}
	c := d.o.Config
	kube.MeasureClients(d.metrics)
	client, err := kube.Dial(kube.Connection(c.Client))
	if err != nil {
		return err
	}
	d.source = kube.New(d.store, kube.Options{
		Client: client, NodeName: c.NodeName, Convert: d.o.converter(), Report: d.report, Log: d.o.Log,
	})
	d.events = kube.NewRecorder(kube.RecorderOptions{Client: client, NodeName: c.NodeName, Log: d.o.Log})
	return nil
}

// record keeps an Event for commands, and writes it to the API server, if there is one. It returns at once.
func (d *daemon) record(e event.Event) {
	d.history.Record(e)
	if d.events != nil {
		d.events.Record(e)
	}
}

func openManifests(store *cluster.Store, o Options, report func([]route.Problem), limits files.Limits) *files.Source {
	return files.New(store, files.Options{
		Paths: o.Config.Manifests, Stdin: o.Stdin, NodeName: o.Config.NodeName, Convert: o.converter(),
		Report: report, Limits: limits,
	})
}

func (o Options) converter() convert.Converter {
	facts := o.kind().Facts
	return convert.Converter{
		AllowExternalIPs: o.Config.ExternalIPs, LoopbackEndpoints: o.Config.Unprivileged(),
		ExternalIPs: o.Config.ExternalIPRanges, LoadBalancerIPs: o.Config.LoadBalancerIPRanges,
		Mode: facts.Name, Lacking: facts.Lacking, AnyScheduler: facts.AnyScheduler, Direct: facts.Direct,
		Ejects: facts.Ejects, Ejection: o.Config.Ejection, AllDirect: o.Config.Direct,
	}
}
