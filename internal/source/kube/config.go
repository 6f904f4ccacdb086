package kube

import (
	"cmp"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Connection is how to reach the API server. Without Kubeconfig and Master it is
// the API server of the cluster in which this process runs as a pod.
type Connection struct {
	Kubeconfig string // path of a file
	Master     string // URL of the server; wins over the one in the file

	ContentType        string // empty: protobuf
	AcceptContentTypes string // empty: protobuf, else JSON
	QPS                float32
	Burst              int
}

// errNoServer is the error if no option and no environment names an API server.
var errNoServer = errors.New("no API server is named, and this is not a pod of a cluster: " +
	"name a kubeconfig with --kubeconfig, a URL with --master, or run without a cluster from files with --manifests")

// RESTConfig returns the configuration of a client. It reads files and the
// environment of a pod, and makes no connection.
func RESTConfig(c Connection) (*rest.Config, error) {
	config, err := locate(c)
	if err != nil {
		return nil, err
	}
	config.ContentType = cmp.Or(c.ContentType, runtime.ContentTypeProtobuf)
	config.AcceptContentTypes = cmp.Or(c.AcceptContentTypes, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON)
	config.QPS, config.Burst, config.UserAgent = c.QPS, c.Burst, "sluice"
	return config, nil
}

// Dial makes a client of the API server. It sends no request yet.
func Dial(c Connection) (*Client, error) {
	config, err := RESTConfig(c)
	if err != nil {
		return nil, err
	}
	return NewClient(config)
}

func locate(c Connection) (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Master == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errNoServer
		}
		if err != nil {
			return nil, fmt.Errorf("read the service account of this pod: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Master}},
	).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("kubeconfig %q names no cluster and no server: correct it, or name the server with --master",
			c.Kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %q: %w", c.Kubeconfig, err)
	}
	return config, nil
}
