// Package fleet runs commands of Sluice in its pods, through the API server of a cluster: on one node, or on all of
// them. It is for people with a kubeconfig; no daemon uses it.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
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
