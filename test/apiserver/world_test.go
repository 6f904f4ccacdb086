//go:build linux

package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// patience bounds how long an expected event may take.
const patience = 30 * time.Second

// world is where one test happens: a lab with three backends and a client, and a
// namespace of the API server, all for this test alone.
type world struct {
	*Cluster
	*testing.T
	lab    *lab.Lab
	client *lab.Host    // a pod on node A
	pods   [3]*lab.Host // backends on port 80, TCP and UDP: on node A, B and A
	ns     string
}

func newWorld(t *testing.T, c *Cluster) *world {
	l := lab.New(t, lab.Options{Timeout: time.Second})
	client, pods := harness.Pods(l, 3)
	w := &world{Cluster: c, T: t, lab: l, client: client, pods: [3]*lab.Host(pods)}
	for _, pod := range pods {
		pod.Serve(lab.UDP, 80)
	}
	ns, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
	}, metav1.CreateOptions{})
	w.must(err)
	w.ns = ns.Name
	t.Cleanup(w.sweep)
	w.setNode("zone-a", "192.168.0.2", "2001:db8::1")
	return w
}

// sweep deletes what the test made, which nobody else would.
func (w *world) sweep() {
	ctx := context.Background() // that of the test is over
	svcs, err := w.Client.CoreV1().Services(w.ns).List(ctx, metav1.ListOptions{})
	w.must(err)
	for _, svc := range svcs.Items {
		w.must(w.Client.CoreV1().Services(w.ns).Delete(ctx, svc.Name, metav1.DeleteOptions{}))
	}
	w.must(w.Client.DiscoveryV1().EndpointSlices(w.ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	w.must(w.Client.CoreV1().Nodes().Delete(ctx, w.lab.NodeA.Name(), metav1.DeleteOptions{}))
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// run runs Sluice for node A.
func (w *world) run(args ...string) *Proxy {
	w.Helper()
	return w.Run(w, w.lab.NodeA, append([]string{"--cluster-cidr=10.180.0.0/16,fd00:10:180::/48"}, args...)...)
}

// Run is that of Cluster: world has two of the name.
func (w *world) Run(t lab.T, host *lab.Host, args ...string) *Proxy {
	w.Helper()
	return w.Cluster.Run(t, host, args...)
}

// eventually tries until there is no error.
func (w *world) eventually(try func() error) {
	w.Helper()
	harness.Eventually(w, patience, try)
}

// create makes a dual stack Service "web" with port 80.
func (w *world) create(change ...func(*corev1.Service)) *corev1.Service {
	w.Helper()
	both := corev1.IPFamilyPolicyPreferDualStack
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: w.ns},
		Spec:       corev1.ServiceSpec{IPFamilyPolicy: &both, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for _, f := range change {
		f(svc)
	}
	svc, err := w.Client.CoreV1().Services(w.ns).Create(w.Context(), svc, metav1.CreateOptions{})
	w.must(err)
	return svc
}

// update changes a Service and returns how the API server completed it.
func (w *world) update(name string, change func(*corev1.Service)) *corev1.Service {
	w.Helper()
	api := w.Client.CoreV1().Services(w.ns)
	svc, err := api.Get(w.Context(), name, metav1.GetOptions{})
	w.must(err)
	change(svc)
	svc, err = api.Update(w.Context(), svc, metav1.UpdateOptions{})
	w.must(err)
	return svc
}

func (w *world) remove(name string) {
	w.Helper()
	w.must(w.Client.CoreV1().Services(w.ns).Delete(w.Context(), name, metav1.DeleteOptions{}))
}

// back sets which pods are behind a Service, in a slice for each family.
func (w *world) back(service string, pods ...*lab.Host) {
	w.Helper()
	for _, s := range Slices(service, pods) {
		w.setSlice(s)
	}
}

func (w *world) setSlice(s *discoveryv1.EndpointSlice) {
	w.Helper()
	w.must(w.PutSlice(w.Context(), w.ns, s))
}

// setNode sets the Node of node A.
func (w *world) setNode(zone string, addrs ...string) {
	w.Helper()
	w.must(w.PutNode(w.Context(), w.lab.NodeA.Name(), map[string]string{corev1.LabelTopologyZone: zone}, addrs...))
}

// targets are the cluster addresses of a Service, with a port.
func targets(svc *corev1.Service, port uint16) []netip.AddrPort {
	var out []netip.AddrPort
	for _, ip := range svc.Spec.ClusterIPs {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(ip), port))
	}
	return out
}

// reaches waits until connections to each target are answered by each of the
// pods, and by nobody else.
func (w *world) reaches(from *lab.Host, to []netip.AddrPort, pods ...*lab.Host) {
	w.Helper()
	for _, target := range to {
		w.eventually(func() error { return only(from, lab.TCP, target, pods) })
	}
}

// only says who of the pods does not answer, or who else does. With three pods
// all have answered after 60 tries but once in a billion.
func only(from *lab.Host, p lab.Protocol, to netip.AddrPort, pods []*lab.Host) error {
	var seen []*lab.Host
	for range 60 {
		r := from.Dial(p, to)
		i := slices.IndexFunc(pods, func(h *lab.Host) bool { return r.Backend.Addr() == h.Addr(to.Addr()) })
		if r.Outcome != lab.Answered || i < 0 {
			return fmt.Errorf("%s: %s", to, r)
		}
		if !slices.Contains(seen, pods[i]) {
			seen = append(seen, pods[i])
		}
		if len(seen) == len(pods) && len(pods) == 1 {
			return nil
		}
	}
	if len(seen) < len(pods) {
		return fmt.Errorf("%s: only %d of %d pods answered", to, len(seen), len(pods))
	}
	return nil
}

// ends waits until connections to each target come to something else than an
// answer.
func (w *world) ends(from *lab.Host, to []netip.AddrPort, want lab.Outcome) {
	w.Helper()
	for _, target := range to {
		w.eventually(func() error {
			r := from.Try(lab.Probe{Protocol: lab.TCP, To: target, Timeout: lab.Soon})
			if r.Outcome != want {
				return fmt.Errorf("%s: %s, want %s", target, r, want)
			}
			return nil
		})
	}
}

// rules are what nf_tables holds on node A.
func (w *world) rules() string { return w.lab.NodeA.MustRun("nft", "list", "ruleset") }
