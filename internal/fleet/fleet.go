// Package fleet runs commands of Sluice in its pods, through the API server of a cluster: on one node, or on all of
// them. It is for people with a kubeconfig; no daemon uses it.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// Access says where the API server is, and which pods are those of Sluice.
type Access struct {
	kubeconfig string
	selector   string
	overrides  clientcmd.ConfigOverrides
}

// Bind adds flags with the names and meanings of kubectl. Those that few people type are not in the help.
func (a *Access) Bind(fs *pflag.FlagSet) {
	all := clientcmd.RecommendedConfigOverrideFlags("")
	namespace := &all.ContextOverrideFlags.Namespace
	namespace.Default, namespace.Description = "kube-system", "namespace of Sluice's pods"
	all.CurrentContext.Description = "`name` of the context in the kubeconfig"
	all.Timeout.Description = "`time` for one answer, such as 5s (default: 10s for each node of status)"
	all.Timeout.Default = ""
	clientcmd.BindOverrideFlags(&a.overrides, fs, all)
	shown := []string{all.CurrentContext.LongName, namespace.LongName, all.Timeout.LongName}
	fs.VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	for _, name := range shown {
		fs.Lookup(name).Hidden = false
	}
	fs.StringVar(&a.kubeconfig, "kubeconfig", "", "`path` of the kubeconfig")
	fs.StringVarP(&a.selector, "selector", "l",
		"app.kubernetes.io/name=sluice,app.kubernetes.io/component=proxy", "`labels` of Sluice's pods")
}

// Cluster is a cluster with pods of Sluice.
type Cluster struct {
	Timeout time.Duration // for one answer; 0: none was chosen

	config    *rest.Config
	core      *rest.RESTClient
	namespace string
	selector  string
}

// Connect reads the kubeconfig. It sends no request yet.
func (a *Access) Connect() (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &a.overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no kubeconfig names a cluster: set --kubeconfig or KUBECONFIG, as for kubectl")
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.UserAgent = "kubectl-sluice"
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	core, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	return &Cluster{config.Timeout, config, core, a.overrides.Context.Namespace, a.selector}, nil
}

// Pods returns the pods of Sluice, one for each node, by the names of nodes.
func (c *Cluster) Pods(ctx context.Context) ([]Pod, error) {
	all, err := c.list(ctx, c.namespace, map[string]string{"labelSelector": c.selector})
	if err != nil {
		return nil, fmt.Errorf("list the pods of Sluice: %w", err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no pod in namespace %s has the labels %s: --namespace and --selector, "+
			"before the command, say where Sluice is", c.namespace, c.selector)
	}
	return onePerNode(all), nil
}

// At returns a pod that has an address; a Pod without a name if there is none. The API server finds pods by the first
// of their addresses.
func (c *Cluster) At(ctx context.Context, addr netip.Addr) (Pod, error) {
	running := fields.Set{"status.podIP": addr.String(), "status.phase": string(corev1.PodRunning)}
	all, err := c.list(ctx, "", map[string]string{"fieldSelector": running.String()})
	if err != nil {
		return Pod{}, fmt.Errorf("find the pod %s: %w", addr, err)
	}
	return append(all, Pod{})[0], nil
}

// Pod returns a pod by its name.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (Pod, error) {
	var pod corev1.Pod
	if err := c.core.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(&pod); err != nil {
		return Pod{}, fmt.Errorf("find pod %s/%s: %w", namespace, name, err)
	}
	return newPod(&pod), nil
}

// page is how many pods one request lists, as kubectl does it.
const page = "500"

func (c *Cluster) list(ctx context.Context, namespace string, query map[string]string) (all []Pod, err error) {
	for next := ""; ; {
		req := c.core.Get().Namespace(namespace).Resource("pods").Param("limit", page)
		for name, value := range query {
			req.Param(name, value)
		}
		if next != "" {
			req.Param("continue", next)
		}
		var got corev1.PodList
		if err := req.Do(ctx).Into(&got); err != nil {
			return nil, err
		}
		for i := range got.Items {
			all = append(all, newPod(&got.Items[i]))
		}
		if next = got.Continue; next == "" {
			return all, nil
		}
	}
}

// Pod is a pod, in most cases one of Sluice.
type Pod struct {
	Namespace, Name, Node string

	Addresses []netip.Addr
	Trouble   string // why no command can run in it; empty: it runs

	container, program string // in which commands run, and the path of Sluice in it
}

// defaultContainer is the annotation that kubectl follows.
const defaultContainer = "kubectl.kubernetes.io/default-container"

func newPod(from *corev1.Pod) Pod {
	p := Pod{Namespace: from.Namespace, Name: from.Name, Node: from.Spec.NodeName, program: "sluice"}
	for _, ip := range from.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			p.Addresses = append(p.Addresses, a.Unmap())
		}
	}
	for i, c := range from.Spec.Containers {
		if i > 0 && c.Name != from.Annotations[defaultContainer] {
			continue
		}
		p.container = c.Name
		if len(c.Command) > 0 && isSluice(c.Command[0]) {
			p.program = c.Command[0]
		}
	}
	p.Trouble = trouble(from, p.container)
	return p
}

// isSluice reports whether a program of a container is Sluice. On Windows it is not on the PATH.
func isSluice(path string) bool {
	base := path[strings.LastIndexAny(path, `/\`)+1:]
	return base == "sluice" || base == "sluice.exe"
}

// trouble returns why no command can run in a container of a pod.
func trouble(p *corev1.Pod, container string) string {
	if p.DeletionTimestamp != nil {
		return "the pod is being deleted"
	}
	waits := ""
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == container && s.State.Waiting != nil {
			waits = s.State.Waiting.Reason
		}
	}
	if p.Status.Phase != corev1.PodRunning {
		waits = cmp.Or(waits, p.Status.Reason, "no container runs")
		return "the pod is " + strings.ToLower(string(p.Status.Phase)) + ": " + waits
	}
	if waits != "" {
		return "the container waits: " + waits
	}
	return ""
}

// onePerNode returns a pod for each node, one that runs if there is one: in a roll-out the previous one may still end.
// Pods without a node stay.
func onePerNode(all []Pod) []Pod {
	slices.SortFunc(all, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(len(a.Trouble), len(b.Trouble)), cmp.Compare(a.Name, b.Name))
	})
	return slices.CompactFunc(all, func(a, b Pod) bool { return a.Node == b.Node && a.Node != "" })
}

// Streams are where the output of a command goes. After its context has ended a command may still write.
type Streams struct{ Stdout, Stderr io.Writer }

// ExitError means that a command ran and ended with a status other than 0.
type ExitError struct{ Status int }

// Error returns the message.
func (e *ExitError) Error() string { return fmt.Sprintf("the command ended with status %d", e.Status) }

// errForbidden means that this user may run no commands in the pod.
var errForbidden = errors.New("commands in pods need the right to create pods/exec")

// Run runs a command of Sluice in a pod. It returns when the context ends, although the handshake of a WebSocket, which
// has no context, continues until its deadline.
func (c *Cluster) Run(ctx context.Context, p Pod, args []string, out Streams) (err error) {
	options := remotecommand.StreamOptions{Stdout: out.Stdout, Stderr: out.Stderr}
	done := make(chan error, 1)
	quiet := logr.NewContext(ctx, logr.Discard()) // what fails is in the error
	req := c.core.Get().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("exec").
		Param("container", p.container).Param("stdout", "true").Param("stderr", "true").Param("command", p.program)
	for _, arg := range args {
		req.Param("command", arg)
	}
	go func() { done <- c.stream(quiet, req, options) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if exit, ok := errors.AsType[utilexec.CodeExitError](err); ok {
		return &ExitError{exit.Code}
	}
	return err
}

// stream runs a command as kubectl does, over a WebSocket or else over SPDY: some proxies know no WebSocket, and for
// the API server it also needs the right to get pods/exec, which many roles lack.
func (c *Cluster) stream(ctx context.Context, req *rest.Request, options remotecommand.StreamOptions) error {
	socket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, req.URL().String())
	if err != nil {
		return err
	}
	err = socket.StreamWithContext(ctx, options)
	failure, refused := errors.AsType[*httpstream.UpgradeFailureError](err)
	if !refused && !httpstream.IsHTTPSProxyError(err) {
		return err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, req.URL())
	if err != nil {
		return err
	}
	err = spdy.StreamWithContext(ctx, options)
	if err != nil && refused && apierrors.IsForbidden(failure.Cause) {
		if _, ran := errors.AsType[utilexec.CodeExitError](err); !ran {
			return fmt.Errorf("%w: %w", errForbidden, err)
		}
	}
	return err
}
