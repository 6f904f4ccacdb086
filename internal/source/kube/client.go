package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

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
	"k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
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
	objects := runtime.SchemeBuilder{
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, eventsv1.AddToScheme,
	}
	if err := objects.AddToScheme(g.scheme); err != nil {
		return nil, err
	}
	c := &g.config
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

// demoted is a slog.Handler that logs messages of libraries at the debug level: the proxy logs failures itself.
type demoted struct{ slog.Handler }

func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return d.Handler.Enabled(ctx, min(level, slog.LevelDebug))
}

// intended begins what client-go logs once for each kind about IsWatchListSemanticsUnSupported of a listing, as if it
// were a fault. To list is a choice: docs/decisions/0031-one-list-at-the-start.md.
const intended = "The client used to build this informer/reflector doesn't support WatchList semantics."

// Handle checks the level, because logr passes errors on without a call of Enabled.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	if !d.Enabled(ctx, r.Level) || strings.HasPrefix(r.Message, intended) {
		return nil
	}
	r.Level = min(r.Level, slog.LevelDebug)
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }

// DemoteLibraries sends the messages that client libraries log through process-wide loggers to log at the debug level.
// Call it at the start of a program, before there is a client.
func DemoteLibraries(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(demoted{log.Handler()}))
}

// contextClock is a clock whose After ends with a context: a reflector waits on it alone while a server is away.
type contextClock struct {
	clock.RealClock

	done context.Context
}

func (c contextClock) After(d time.Duration) <-chan time.Time {
	ctx, cancel := context.WithTimeout(c.done, d)
	over := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() {
		cancel()
		over <- c.Now()
	})
	return over
}

// Meter receives the measurements of API clients, under the names of metrics that all of Kubernetes uses. Label values
// come in the order of Kubernetes' labels. It is safe for concurrent use.
type Meter interface {
	Count(name string, labels ...string)
	Observe(name string, value float64, labels ...string) // seconds or bytes
	Set(name string, value float64, labels ...string)
	Expires(at *time.Time) // the certificate of an exec plugin; nil: there is none
}

// MeasureClients passes the measurements of all API clients of this process to a Meter. Call it at the start of a
// program, before there is a client; only the first call has an effect.
func MeasureClients(m Meter) {
	metrics.Register(metrics.RegisterOpts{
		ClientCertExpiry:             expiry{m},
		ClientCertRotationAge:        duration{m, "rest_client_exec_plugin_certificate_rotation_age"},
		RequestLatency:               latency{m, "rest_client_request_duration_seconds"},
		RateLimiterLatency:           latency{m, "rest_client_rate_limiter_duration_seconds"},
		RequestSize:                  size{m, "rest_client_request_size_bytes"},
		ResponseSize:                 size{m, "rest_client_response_size_bytes"},
		RequestResult:                requests{m},
		RequestRetry:                 requests{m},
		ExecPluginCalls:              calls{m},
		TransportCacheEntries:        entries{m},
		TransportCreateCalls:         result{m, "rest_client_transport_create_calls_total"},
		TransportCAReloads:           reloads{m},
		TransportCertRotationGCCalls: once{m},
		TransportCacheGCCalls:        result{m, "rest_client_transport_cache_gc_calls_total"},
	})
}

// named is a Meter with the name of a metric.
type named struct {
	m    Meter
	name string
}

// Each adapter has the methods of the interfaces whose fields it is assigned to above.
type (
	expiry   struct{ m Meter }
	requests struct{ m Meter }
	calls    struct{ m Meter }
	entries  struct{ m Meter }
	reloads  struct{ m Meter }
	once     struct{ m Meter }
	duration named
	latency  named
	size     named
	result   named
)

func (e expiry) Set(at *time.Time) { e.m.Expires(at) }

func (d duration) Observe(took time.Duration) { d.m.Observe(d.name, took.Seconds()) }

func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l.m.Observe(l.name, took.Seconds(), verb, u.Host)
}

func (s size) Observe(_ context.Context, verb, host string, bytes float64) {
	s.m.Observe(s.name, bytes, verb, host)
}

func (r requests) Increment(_ context.Context, code, method, host string) {
	r.m.Count("rest_client_requests_total", code, method, host)
}

func (r requests) IncrementRetry(_ context.Context, code, verb, host string) {
	r.m.Count("rest_client_request_retries_total", code, verb, host)
}

func (c calls) Increment(code int, status string) {
	c.m.Count("rest_client_exec_plugin_call_total", strconv.Itoa(code), status)
}

func (e entries) Observe(n int) { e.m.Set("rest_client_transport_cache_entries", float64(n)) }

func (r result) Increment(how string) { r.m.Count(r.name, how) }

func (r reloads) Increment(how, why string) {
	r.m.Count("rest_client_transport_ca_reload_total", how, why)
}

func (o once) Increment() { o.m.Count("rest_client_transport_cert_rotation_gc_calls_total") }
