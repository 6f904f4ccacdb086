//go:build linux

package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// deployed is a cluster with the manifests applied, and a lab in which Sluice runs with exactly
// the privileges of the DaemonSet and the token of its service account.
type deployed struct {
	*cluster
	lab    *lab.Lab
	client *lab.Host // a pod on node A
	root   string
}

// deploy applies the manifests and creates the objects that their pods need.
func deploy(t *testing.T, c *cluster, root string) *deployed {
	t.Helper()
	c.kubectl(t, "apply", "-k", projectPath("deploy/kubernetes/base"))
	at := c.address(t)
	c.kubectl(t, "-n", system, "delete", "configmap", "sluice-apiserver", "--ignore-not-found")
	c.kubectl(t, "-n", system, "create", "configmap", "sluice-apiserver",
		"--from-literal=host="+at.Hostname(), "--from-literal=port="+at.Port())
	l := lab.New(t, lab.Options{Timeout: time.Second})
	c.Forward(t, l.NodeA)
	c.addNode(t, l.NodeA.Name(), "192.168.0.2")
	return &deployed{cluster: c, lab: l, client: l.Pod(l.NodeA, "10.180.0.9"), root: root}
}

// container returns the confinement of the DaemonSet's container on node A.
func (d *deployed) container(t *testing.T) confinement {
	t.Helper()
	spec := daemonSet(t).Spec.Template.Spec
	k := kubelet{
		root: d.root, node: d.lab.NodeA, maps: d.configMaps(t), dir: t.TempDir(), hostFolders: hostSocketFolder(t),
		extraMounts: map[string]string{
			"/var/run/secrets/kubernetes.io/serviceaccount": d.serviceAccountDir(t, spec.ServiceAccountName),
		},
	}
	return k.confinement(t, &spec, &spec.Containers[0])
}

// createService creates a Service with one pod as its endpoint.
func (d *deployed) createService(t *testing.T, name, pod string) netip.AddrPort {
	t.Helper()
	svc, err := d.Client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(t, err)
	d.lab.Pod(d.lab.NodeA, pod).Serve(lab.TCP, 80)
	none, port, ready := "", int32(80), true
	_, err = d.Client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: svc.Name + "-", Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &none, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{pod}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	return netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), 80)
}

// checkReached returns an error unless the pod answers at the Service's address.
func (d *deployed) checkReached(to netip.AddrPort, pod string) error {
	r := d.client.Try(lab.Probe{Protocol: lab.TCP, To: to, Timeout: lab.Soon})
	if r.Outcome != lab.Answered || r.Backend.Addr().String() != pod {
		return fmt.Errorf("%s: %s, want an answer of %s", to, r, pod)
	}
	return nil
}

// testRights verifies that the role is sufficient.
func testRights(t *testing.T, c *cluster, root string) {
	d := deploy(t, c, root)
	before := d.createService(t, "before", "10.180.1.1")
	p := d.container(t).start(t, d.lab.NodeA)
	eventually(t, func() error { return d.checkReached(before, "10.180.1.1") })
	after := d.createService(t, "after", "10.180.1.2")
	eventually(t, func() error { return d.checkReached(after, "10.180.1.2") })
	eventually(t, func() error { return d.checkEvent(t, "Starting") })
	if strings.Contains(p.log.String(), "forbidden") {
		t.Errorf("something is forbidden:\n%s", p.log)
	}
	must(t, p.stop())
	must(t, d.checkReached(before, "10.180.1.1")) // the rules stay
}

// checkEvent returns an error unless there is an Event about node A with a reason.
func (d *deployed) checkEvent(t *testing.T, reason string) error {
	t.Helper()
	list, err := d.Client.EventsV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, e := range list.Items {
		if e.Reason == reason && e.Regarding.Name == d.lab.NodeA.Name() {
			return nil
		}
	}
	return fmt.Errorf("%d Events, none %s", len(list.Items), reason)
}

// eventDelay is how long Sluice may delay an Event that every node detects.
const eventDelay = 20 * time.Second

// testEachRight removes one verb on one kind at a time, and verifies that Sluice logs the missing
// right, so that the role has no unnecessary one.
func testEachRight(t *testing.T, c *cluster, root string) {
	d := deploy(t, c, root)
	roles := c.Client.RbacV1().ClusterRoles()
	full, err := roles.Get(t.Context(), "sluice", metav1.GetOptions{})
	must(t, err)
	for _, right := range rightsOf(full.Rules) {
		t.Run(right.name(), func(t *testing.T) {
			role, err := roles.Get(t.Context(), "sluice", metav1.GetOptions{})
			must(t, err)
			role.Rules = rulesWithout(full.Rules, right)
			_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
			must(t, err)
			eventually(t, func() error { return d.checkDenied(t, right) })
			pod := d.container(t)
			if right.verb == "list" {
				// API servers before 1.34 may not support WatchList, so Sluice lists.
				pod.Env = append(pod.Env, "KUBE_FEATURE_WatchListClient=false")
			}
			p := pod.start(t, d.lab.NodeA)
			limit := timeout
			if right.verb == "patch" {
				d.createConflict(t)
				limit += eventDelay
			}
			harness.Eventually(t, limit, func() error { return right.checkReported(p) })
			must(t, p.stop())
		})
	}
}

type right struct{ group, resource, verb string }

func (r right) name() string { return strings.Trim(r.verb+" "+r.resource+"."+r.group, ".") }

// checkReported returns an error unless the program logs that it lacks the right.
func (r right) checkReported(p *process) error {
	log := p.log.String()
	for line := range strings.Lines(log) {
		if strings.Contains(line, "cannot "+r.verb+" resource") && strings.Contains(line, r.resource) {
			return nil
		}
	}
	return fmt.Errorf("the log lacks the missing right %s:\n%s", r.name(), log)
}

// createConflict creates two Services with the same address and changes one repeatedly, so that its Event repeats.
func (d *deployed) createConflict(t *testing.T) {
	t.Helper()
	services := d.Client.CoreV1().Services("default")
	for _, name := range []string{"first", "second"} {
		_, err := services.Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{
				Ports: []corev1.ServicePort{{Port: 80}}, ExternalIPs: []string{"198.51.100.1"},
			},
		}, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() { must(t, services.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	}
	d.waitComplete(t, "second", false)
	for _, claim := range [][]string{nil, {"198.51.100.1"}, nil, {"198.51.100.1"}} {
		svc, err := services.Get(t.Context(), "second", metav1.GetOptions{})
		must(t, err)
		svc.Spec.ExternalIPs = claim
		_, err = services.Update(t.Context(), svc, metav1.UpdateOptions{})
		must(t, err)
		d.waitComplete(t, "second", claim == nil) // so that each change is compiled separately
	}
}

// waitComplete waits until Sluice programs all addresses of a Service, or leaves one out.
func (d *deployed) waitComplete(t *testing.T, name string, want bool) {
	t.Helper()
	query := url.Values{"namespace": {"default"}, "name": {name}}
	eventually(t, func() error {
		client := admin.Dial(admin.Options{NetNS: d.lab.NodeA.NetNSFD()})
		services, err := admin.All[inspect.Service](client.Ask(t.Context(), "/services", query))
		if err != nil {
			return err
		}
		if len(services) != 1 || (services[0].LeftOut == 0) != want {
			return fmt.Errorf("services are %+v, want %s, complete: %t", services, name, want)
		}
		return nil
	})
}

func rightsOf(rules []rbacv1.PolicyRule) []right {
	var out []right
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					out = append(out, right{group, resource, verb})
				}
			}
		}
	}
	return out
}

func rulesWithout(rules []rbacv1.PolicyRule, not right) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for _, r := range rightsOf(rules) {
		if r != not {
			out = append(out, rbacv1.PolicyRule{
				APIGroups: []string{r.group}, Resources: []string{r.resource}, Verbs: []string{r.verb},
			})
		}
	}
	return out
}

// checkDenied returns an error while the API server still grants the right.
func (d *deployed) checkDenied(t *testing.T, r right) error {
	t.Helper()
	out, _ := runCommand(t, tool("kubectl"), "--kubeconfig="+d.kubeconfig, "auth", "can-i", r.verb,
		strings.Trim(r.resource+"."+r.group, "."),
		"--as=system:serviceaccount:"+system+":sluice", "-A") // exits with an error if the answer is no
	if strings.TrimSpace(out) != "no" {
		return errors.New("the right is still granted")
	}
	return nil
}

// TestCluster starts one API server for all tests.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	root := imageFor(t, "nftables")
	eventually(t, func() error {
		_, err := c.Client.CoreV1().Namespaces().Get(t.Context(), system, metav1.GetOptions{})
		return err
	})
	t.Run("manifests", func(t *testing.T) { testManifests(t, c) })
	t.Run("chart", func(t *testing.T) { testChart(t, c) })
	t.Run("rights are sufficient", func(t *testing.T) { testRights(t, c, root) })
	t.Run("each right is needed", func(t *testing.T) { testEachRight(t, c, root) })
}
