package app

import (
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/source/kube"
	"github.com/sluice-proxy/sluice/internal/source/manifest"
)

// openSource builds what feeds the store: manifests, or an API server.
func openSource(store *cluster.Store, o Options) (Source, error) {
	if len(o.Config.Manifests) > 0 {
		return openManifests(store, o), nil
	}
	return openKube(store, o)
}

func openManifests(store *cluster.Store, o Options) *manifest.Source {
	return manifest.New(store, manifest.Options{
		Paths: o.Config.Manifests, Stdin: o.Stdin, NodeName: o.Config.NodeName,
		AllowExternalIPs: o.Config.ExternalIPs, Report: o.report,
	})
}

func openKube(store *cluster.Store, o Options) (*kube.Source, error) {
	c := o.Config
	client, err := kube.Dial(kube.Connection{
		Kubeconfig:         c.Client.Kubeconfig,
		Master:             c.Client.Master,
		ContentType:        c.Client.ContentType,
		AcceptContentTypes: c.Client.AcceptContentTypes,
		QPS:                c.Client.QPS,
		Burst:              c.Client.Burst,
		UserAgent:          "sluice",
	})
	if err != nil {
		return nil, err
	}
	return kube.New(store, kube.Options{
		Client: client, NodeName: c.NodeName, AllowExternalIPs: c.ExternalIPs,
		Report: o.report, Log: o.Log,
	}), nil
}
