//go:build linux

package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// nodes replaces the scheduler, the DaemonSet controller and the kubelets of a cluster, for the
// DaemonSets of Sluice and kube-proxy.
type nodes struct {
	t            *testing.T
	cluster      *cluster
	root         string // of the image
	iptablesRoot string // of the image with the programs of iptables
	hosts        map[string]*lab.Host
	pods         map[string]*podOnNode // by DaemonSet and node
}

// podOnNode is a running pod.
type podOnNode struct {
	generation int64 // of its DaemonSet
	process    *process
	ready      func() error
	before     *podOnNode // ends when this one is ready; nil: none is left
}

// stop ends a pod, and the one before it.
func (p *podOnNode) stop() {
	if p.before != nil {
		p.before.stop()
	}
	_ = p.process.stop()
}

// startNodes reconciles until the returned function is called, or the test ends.
func startNodes(t *testing.T, c *cluster, root string, hosts ...*lab.Host) (stop func()) {
	t.Helper()
	n := &nodes{t: t, cluster: c, root: root, iptablesRoot: imageFor(t, "iptables"), hosts: map[string]*lab.Host{}, pods: map[string]*podOnNode{}}
	for _, h := range hosts {
		n.hosts[h.Name()] = h
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := n.reconcile(ctx); err != nil && ctx.Err() == nil {
				t.Logf("nodes: %v", err)
			}
			time.Sleep(30 * time.Millisecond)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
		for _, p := range n.pods {
			p.stop()
		}
	})
	t.Cleanup(stop)
	return stop
}

// reconcile stops and starts pods once.
func (n *nodes) reconcile(ctx context.Context) error {
	sets, err := n.cluster.Client.AppsV1().DaemonSets(system).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	list, err := n.cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, ds := range sets.Items {
		for _, node := range list.Items {
			if matchesNode(&ds.Spec.Template.Spec, node.Labels) {
				wanted[ds.Name+" "+node.Name] = true
			}
		}
	}
	for key, pod := range n.pods { // stop pods before starting others
		if !wanted[key] {
			pod.stop()
			delete(n.pods, key)
		}
	}
	for _, ds := range sets.Items {
		if err := n.run(ctx, &ds, wanted); err != nil {
			return err
		}
	}
	return nil
}

// run starts the pods of one DaemonSet, and updates its status.
func (n *nodes) run(ctx context.Context, ds *appsv1.DaemonSet, wanted map[string]bool) error {
	var total, ready int32
	for name := range n.hosts {
		key := ds.Name + " " + name
		if !wanted[key] {
			continue
		}
		total++
		pod := n.pods[key]
		if pod == nil || pod.generation != ds.Generation { // the template may have changed
			pod = n.replace(pod, ds, n.hosts[name])
			n.pods[key] = pod
		}
		if pod.ready() == nil {
			ready++
			pod.endBefore()
		}
	}
	was := ds.Status
	ds.Status = appsv1.DaemonSetStatus{
		ObservedGeneration: ds.Generation, DesiredNumberScheduled: total, CurrentNumberScheduled: total,
		UpdatedNumberScheduled: total, NumberReady: ready, NumberAvailable: ready, NumberUnavailable: total - ready,
	}
	if was.ObservedGeneration == ds.Status.ObservedGeneration && was.NumberReady == ready && was.DesiredNumberScheduled == total {
		return nil
	}
	_, err := n.cluster.Client.AppsV1().DaemonSets(system).UpdateStatus(ctx, ds, metav1.UpdateOptions{})
	return err
}

// replace starts a pod in place of another one, which ends first, or with a surge when the new one is ready.
func (n *nodes) replace(old *podOnNode, ds *appsv1.DaemonSet, host *lab.Host) *podOnNode {
	surge := ds.Spec.UpdateStrategy.RollingUpdate != nil && ds.Spec.UpdateStrategy.RollingUpdate.MaxSurge.String() != "0"
	if old != nil && !surge {
		old.stop()
		old = nil
	}
	pod := n.start(ds, host)
	pod.before = old
	return pod
}

// endBefore ends the pod that this one has replaced.
func (p *podOnNode) endBefore() {
	if p.before != nil {
		p.before.stop()
		p.before = nil
	}
}

// matchesNode reports whether a pod may run on a node with these labels.
func matchesNode(pod *corev1.PodSpec, labels map[string]string) bool {
	for k, v := range pod.NodeSelector {
		if labels[k] != v {
			return false
		}
	}
	if pod.Affinity == nil || pod.Affinity.NodeAffinity == nil {
		return true
	}
	for _, term := range pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			in := slices.Contains(e.Values, labels[e.Key])
			if e.Operator == corev1.NodeSelectorOpNotIn && in || e.Operator == corev1.NodeSelectorOpIn && !in {
				return false
			}
		}
	}
	return true
}

// start starts a pod.
func (n *nodes) start(ds *appsv1.DaemonSet, host *lab.Host) *podOnNode {
	if ds.Name == "kube-proxy" {
		// There is no readiness probe, so the pod is ready as soon as it is running.
		return &podOnNode{generation: ds.Generation, process: n.kubeProxy(host), ready: func() error { return nil }}
	}
	spec := &ds.Spec.Template.Spec
	k := kubelet{root: n.root, node: host, maps: n.cluster.configMaps(n.t), dir: n.t.TempDir(), extraMounts: map[string]string{}}
	if slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c corev1.Container) bool { return strings.HasSuffix(c.Image, "-iptables") }) {
		k.root = n.iptablesRoot
	}
	if spec.ServiceAccountName != "" {
		k.extraMounts["/var/run/secrets/kubernetes.io/serviceaccount"] = n.cluster.serviceAccountDir(n.t, spec.ServiceAccountName)
	}
	if spec.Containers[0].Name == "done" { // the init container does the work
		p := k.confinement(n.t, spec, &spec.InitContainers[0]).start(n.t, host)
		return &podOnNode{generation: ds.Generation, process: p, ready: p.wait}
	}
	p := k.confinement(n.t, spec, &spec.Containers[0]).start(n.t, host)
	return &podOnNode{generation: ds.Generation, process: p, ready: func() error {
		if !strings.Contains(p.log.String(), "msg=Synced") {
			return errors.New("Sluice has not written its rules yet")
		}
		return nil
	}}
}

// kubeProxy starts the real kube-proxy on a host, with the paths of its files replaced.
func (n *nodes) kubeProxy(host *lab.Host) *process {
	n.t.Helper()
	dir := n.t.TempDir()
	at := strings.NewReplacer("/var/lib/kube-proxy", dir,
		"/var/run/secrets/kubernetes.io/serviceaccount", n.cluster.serviceAccountDir(n.t, "kube-proxy"))
	for name, text := range n.cluster.configMaps(n.t)["kube-proxy"] {
		must(n.t, os.WriteFile(filepath.Join(dir, name), []byte(at.Replace(text)), 0o600))
	}
	p := &process{t: n.t, log: &harness.Log{}}
	p.cmd = exec.Command(kubeProxyPath(), "--config="+dir+"/config.conf", "--hostname-override="+host.Name())
	p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	p.cmd.Env = append(os.Environ(), "PATH="+iptables(n.t, host)+":"+os.Getenv("PATH"))
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	var err error
	p.wait, err = host.Start(p.cmd)
	must(n.t, err)
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("the log of kube-proxy on %s:\n%s", host.Name(), p.log)
		}
	})
	return p
}

// kubeProxyPath returns KUBE_PROXY, or the path at which hack/test-assets.sh builds kube-proxy.
func kubeProxyPath() string {
	if path := os.Getenv("KUBE_PROXY"); path != "" {
		return path
	}
	return filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kube-proxy")
}

// iptables creates a folder with the iptables variant of a host: legacy on node B, nft on all
// others.
func iptables(t *testing.T, host *lab.Host) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		path, err := exec.LookPath(iptablesBinary(host))
		must(t, err)
		must(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	return dir
}

// iptablesBinary returns the multi-call binary of the variant.
func iptablesBinary(host *lab.Host) string {
	if host.Name() == "node-b" {
		return "xtables-legacy-multi"
	}
	return "xtables-nft-multi"
}

// checkKubeProxyRules returns an error unless a host has Service chains of kube-proxy.
func checkKubeProxyRules(host *lab.Host) error {
	rules, err := host.Run("", iptablesBinary(host), "iptables-save")
	if err == nil && !strings.Contains(rules, "-A KUBE-SVC-") {
		err = fmt.Errorf("no rules of kube-proxy on %s", host.Name())
	}
	return err
}
