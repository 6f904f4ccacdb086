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

	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/test/lab"
)

// deployed is Sluice on a node, as the manifests say: what the DaemonSet asks for
// and no more, with the service account's token.
type deployed struct {
	*cluster
	lab    *lab.Lab
	client *lab.Host // a pod on node A
	root   string
	mode   string
}

// deploy applies the manifests and makes ready what a pod of them needs.
func deploy(t *testing.T, c *cluster, root string) *deployed {
	t.Helper()
	c.kubectl(t, "apply", "-k", project("deploy/kubernetes/base"))
	at := c.address(t)
	c.kubectl(t, "-n", system, "delete", "configmap", "sluice-apiserver", "--ignore-not-found")
	c.kubectl(t, "-n", system, "create", "configmap", "sluice-apiserver",
		"--from-literal=host="+at.Hostname(), "--from-literal=port="+at.Port())
	l := lab.New(t, lab.Options{Timeout: time.Second})
	c.Forward(t, l.NodeA)
	c.addNode(t, l.NodeA.Name(), "192.168.0.2")
	return &deployed{cluster: c, lab: l, client: l.Pod(l.NodeA, "10.180.0.9"), root: root}
}

// pod is what runs on node A.
func (d *deployed) pod(t *testing.T) confinement {
	t.Helper()
	spec := daemonSet(t).Spec.Template.Spec
	k := kubelet{
		root: d.root, node: d.lab.NodeA, maps: d.configMaps(t), dir: t.TempDir(),
		more: map[string]string{"/var/run/secrets/kubernetes.io/serviceaccount": d.account(t, spec.ServiceAccountName)},
	}
	return k.confinement(t, &spec, &spec.Containers[0])
}

// service makes a Service with one pod behind it.
func (d *deployed) service(t *testing.T, name, pod string) netip.AddrPort {
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
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{pod}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}, metav1.CreateOptions{})
	must(t, err)
	return netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), 80)
}

// reaches says whether the pod answers at the Service's address.
func (d *deployed) reaches(to netip.AddrPort, pod string) error {
	return d.reachesWithin(lab.Soon, to, pod)
}

func (d *deployed) reachesWithin(patience time.Duration, to netip.AddrPort, pod string) error {
	r := d.client.Try(lab.Probe{Protocol: lab.TCP, To: to, Timeout: patience})
	if r.Outcome != lab.Answered || r.Backend.Addr().String() != pod {
		return fmt.Errorf("%s: %s, want an answer of %s", to, r, pod)
	}
	return nil
}

// testRights has the role be enough.
func testRights(t *testing.T, c *cluster, root string) {
	d := deploy(t, c, root)
	before := d.service(t, "before", "10.180.1.1")
	p := d.pod(t).start(t, d.lab.NodeA)
	eventually(t, func() error { return d.reaches(before, "10.180.1.1") })
	after := d.service(t, "after", "10.180.1.2")
	eventually(t, func() error { return d.reaches(after, "10.180.1.2") })
	eventually(t, func() error { return d.event(t, "Starting") })
	if strings.Contains(p.log.String(), "forbidden") {
		t.Errorf("something is forbidden:\n%s", p.log)
	}
	must(t, p.stop())
	must(t, d.reaches(before, "10.180.1.1")) // the rules stay
}

// event says whether there is an Event about node A with a reason.
func (d *deployed) event(t *testing.T, reason string) error {
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

// spread is how long an Event that all nodes find may wait before it is written.
const spread = 20 * time.Second

// testEachRight takes away one verb on one kind at a time, and Sluice says what
// it may not do: none is there for nothing.
func testEachRight(t *testing.T, c *cluster, root string) {
	d := deploy(t, c, root)
	roles := c.Client.RbacV1().ClusterRoles()
	whole, err := roles.Get(t.Context(), "sluice", metav1.GetOptions{})
	must(t, err)
	for _, right := range rightsOf(whole.Rules) {
		t.Run(right.name(), func(t *testing.T) {
			less, err := roles.Get(t.Context(), "sluice", metav1.GetOptions{})
			must(t, err)
			less.Rules = without(whole.Rules, right)
			_, err = roles.Update(t.Context(), less, metav1.UpdateOptions{})
			must(t, err)
			eventually(t, func() error { return d.mayNot(t, right) })
			pod := d.pod(t)
			if right.verb == "list" {
				// As with an API server before 1.34, which may not send lists as watches.
				pod.Env = append(pod.Env, "KUBE_FEATURE_WatchListClient=false")
			}
			p := pod.start(t, d.lab.NodeA)
			patience := patience
			if right.verb == "patch" {
				d.conflict(t)
				patience += spread
			}
			within(t, patience, func() error { return right.missed(p) })
			must(t, p.stop())
		})
	}
}

// right is one verb on one kind.
type right struct{ group, resource, verb string }

func (r right) name() string { return strings.Trim(r.verb+" "+r.resource+"."+r.group, ".") }

// missed says whether the program tells that it may not.
func (r right) missed(p *process) error {
	log := p.log.String()
	for line := range strings.Lines(log) {
		if strings.Contains(line, "cannot "+r.verb+" resource") && strings.Contains(line, r.resource) {
			return nil
		}
	}
	return fmt.Errorf("nothing is said of %s:\n%s", r.name(), log)
}

// conflict has two Services claim one address, again and again: what there is to
// tell people repeats.
func (d *deployed) conflict(t *testing.T) {
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
	d.complete(t, "second", false)
	for _, claim := range [][]string{nil, {"198.51.100.1"}, nil, {"198.51.100.1"}} {
		svc, err := services.Get(t.Context(), "second", metav1.GetOptions{})
		must(t, err)
		svc.Spec.ExternalIPs = claim
		_, err = services.Update(t.Context(), svc, metav1.UpdateOptions{})
		must(t, err)
		d.complete(t, "second", claim == nil) // each change is compiled on its own
	}
}

// complete waits until Sluice has all addresses of a Service, or leaves one out.
func (d *deployed) complete(t *testing.T, name string, want bool) {
	t.Helper()
	query := url.Values{"namespace": {"default"}, "name": {name}}
	eventually(t, func() error {
		var answer struct{ Items []inspect.Service }
		err := control.Dial(control.Options{NetNS: d.lab.NodeA.NetNSFD()}).Get(t.Context(), "/services", query, &answer)
		if err != nil {
			return err
		}
		if len(answer.Items) != 1 || (answer.Items[0].LeftOut == 0) != want {
			return fmt.Errorf("services are %+v, want %s, complete: %t", answer.Items, name, want)
		}
		return nil
	})
}

// rightsOf takes rules apart.
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

// without puts all rights together but one.
func without(rules []rbacv1.PolicyRule, not right) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for _, r := range rightsOf(rules) {
		if r != not {
			out = append(out, rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{r.resource}, Verbs: []string{r.verb}})
		}
	}
	return out
}

// mayNot waits for the API server to know.
func (d *deployed) mayNot(t *testing.T, r right) error {
	t.Helper()
	out, _ := try(t, tool("kubectl"), "--kubeconfig="+d.kubeconfig, "auth", "can-i", r.verb, strings.Trim(r.resource+"."+r.group, "."),
		"--as=system:serviceaccount:"+system+":sluice", "-A") // "no" is an error
	if strings.TrimSpace(out) != "no" {
		return errors.New("it still may")
	}
	return nil
}

// TestCluster starts one API server for all.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	root := image(t)
	eventually(t, func() error {
		_, err := c.Client.CoreV1().Namespaces().Get(t.Context(), system, metav1.GetOptions{})
		return err
	})
	t.Run("manifests", func(t *testing.T) { testManifests(t, c) })
	t.Run("chart", func(t *testing.T) { testChart(t, c) })
	t.Run("rights are enough", func(t *testing.T) { testRights(t, c, root) })
	t.Run("docs/install.md", func(t *testing.T) { testInstall(t, c, root) })
	t.Run("docs/migration.md", func(t *testing.T) { testMigration(t, c, root, "nftables") })
	t.Run("docs/migration.md in mode iptables", func(t *testing.T) { testMigration(t, c, root, "iptables") })
	t.Run("each right is needed", func(t *testing.T) { testEachRight(t, c, root) })
}
