package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"
)

// Client requests the objects that a proxy needs from an API server. client-go's typed clients know every kind of
// object, which costs 12 MB of the program and 9 MB of its memory.
type Client struct {
	server string // its URL; empty: unknown

	services func(namespace string) lister
	slices   lister
	nodes    lister
	cidrs    lister
	events   func(namespace string) eventAPI
	version  func(context.Context) ([]byte, error)
}

// eventAPI writes the Events of a namespace.
type eventAPI interface {
	Create(context.Context, *eventsv1.Event, metav1.CreateOptions) (*eventsv1.Event, error)
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*eventsv1.Event, error)
}

// NewClient makes a client. It sends no request yet.
func NewClient(config *rest.Config) (*Client, error) {
	groups, err := newGroups(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	var rests [4]*rest.RESTClient
	for i, gv := range []schema.GroupVersion{
		corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion,
		networkingv1.SchemeGroupVersion, eventsv1.SchemeGroupVersion,
	} {
		if rests[i], err = groups.client(gv); err != nil {
			return nil, fmt.Errorf("make a client for %s: %w", gv, err)
		}
	}
	core, discovery, networking, events := rests[0], rests[1], rests[2], rests[3]
	params := runtime.NewParameterCodec(groups.scheme)
	of := func(k kind, client *rest.RESTClient, namespace string) lister {
		return &resource{k, client, params, groups.codecs.UniversalDeserializer(), namespace}
	}
	return &Client{
		server:   base(core.Get().URL()),
		services: func(namespace string) lister { return of(serviceKind(), core, namespace) },
		slices:   of(sliceKind(), discovery, metav1.NamespaceAll),
		nodes:    of(nodeKind(), core, ""),
		cidrs:    of(cidrKind(), networking, ""),
		version: func(ctx context.Context) ([]byte, error) {
			return core.Get().AbsPath("/version").SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
		},
		events: func(namespace string) eventAPI {
			empty := func() *eventsv1.Event { return &eventsv1.Event{} }
			return gentype.NewClient("events", events, params, namespace, empty, gentype.PrefersProtobuf[*eventsv1.Event]())
		},
	}, nil
}

// Server returns the URL of the API server; empty if it is not known.
func (c *Client) Server() string { return c.server }

// Version returns the version of the API server, such as "v1.37.0"; fs.ErrPermission if this client may not ask.
func (c *Client) Version(ctx context.Context) (string, error) {
	text, err := c.version(ctx)
	if apierrors.IsForbidden(err) {
		return "", fmt.Errorf("ask %s for its version: %w: %w", c.server, fs.ErrPermission, err)
	}
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", c.server, err)
	}
	var v struct{ GitVersion string }
	if err := json.Unmarshal(text, &v); err != nil {
		return "", fmt.Errorf("read the version of %s: %w", c.server, err)
	}
	return v.GitVersion, nil
}

// groups makes clients of groups of the API that share connections and pace.
type groups struct {
	config rest.Config
	http   *http.Client
	scheme *runtime.Scheme
	codecs serializer.CodecFactory
}

func newGroups(config *rest.Config) (*groups, error) {
	g := &groups{config: *config, scheme: runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, eventsv1.AddToScheme,
	} {
		if err := add(g.scheme); err != nil {
			return nil, err
		}
	}
	c := &g.config
	if c.UserAgent == "" {
		c.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	if c.RateLimiter == nil && c.QPS > 0 {
		c.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, cmp.Or(c.Burst, rest.DefaultBurst))
	}
	g.codecs = serializer.NewCodecFactory(g.scheme)
	c.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(g.scheme, g.codecs).WithoutConversion()
	c.DisableCompression = true // it would cost the API server most of the time of a list
	var err error
	g.http, err = rest.HTTPClientFor(c)
	return g, err
}

func (g *groups) client(gv schema.GroupVersion) (*rest.RESTClient, error) {
	c := g.config
	c.GroupVersion, c.APIPath = &gv, "/apis"
	if gv.Group == "" {
		c.APIPath = "/api"
	}
	return rest.RESTClientForConfigAndClient(&c, g.http)
}

// Connection names the API server. Without Kubeconfig and Master it is that of the cluster of this pod.
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

// RESTConfig returns the configuration of a client. It reads files and the environment of a pod, and does not connect.
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
