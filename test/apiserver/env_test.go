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

// timeout bounds how long an expected event may take.
const timeout = 30 * time.Second

// testEnv is the environment of one test: a lab with three backends and a client, and a namespace of the API server.
type testEnv struct {
	*Cluster
	*testing.T
	lab    *lab.Lab
	client *lab.Host    // a pod on node A
	pods   [3]*lab.Host // backends on port 80, TCP and UDP: on node A, B and A
	ns     string
}

func newTestEnv(t *testing.T, c *Cluster) *testEnv {
	l := lab.New(t, lab.Options{Timeout: time.Second})
	client, pods := harness.Pods(l, 3)
	w := &testEnv{Cluster: c, T: t, lab: l, client: client, pods: [3]*lab.Host(pods)}
	for _, pod := range pods {
		pod.Serve(lab.UDP, 80)
	}
	ns, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
	}, metav1.CreateOptions{})
	w.must(err)
	w.ns = ns.Name
	t.Cleanup(w.deleteAll)
	w.setNode("zone-a", "192.168.0.2", "2001:db8::1")
	return w
}

func (w *testEnv) deleteAll() {
	ctx := context.Background() // the context of the test has already ended
	svcs, err := w.Client.CoreV1().Services(w.ns).List(ctx, metav1.ListOptions{})
	w.must(err)
	for _, svc := range svcs.Items {
		w.must(w.Client.CoreV1().Services(w.ns).Delete(ctx, svc.Name, metav1.DeleteOptions{}))
	}
	w.must(w.Client.DiscoveryV1().EndpointSlices(w.ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	w.must(w.Client.CoreV1().Nodes().Delete(ctx, w.lab.NodeA.Name(), metav1.DeleteOptions{}))
}

func (w *testEnv) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// run runs Sluice for node A.
func (w *testEnv) run(args ...string) *Proxy {
	w.Helper()
	return w.Run(w, w.lab.NodeA, append([]string{"--cluster-cidr=10.180.0.0/16,fd00:10:180::/48"}, args...)...)
}

// Run is Cluster.Run: testEnv embeds two types with a method Run.
func (w *testEnv) Run(t lab.T, host *lab.Host, args ...string) *Proxy {
	w.Helper()
	return w.Cluster.Run(t, host, args...)
}

// eventually calls try until it returns no error.
func (w *testEnv) eventually(try func() error) {
	w.Helper()
	harness.Eventually(w, timeout, try)
}

// createService creates a dual-stack Service web with port 80.
func (w *testEnv) createService(change ...func(*corev1.Service)) *corev1.Service {
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

// updateService changes a Service and returns it as completed by the API server.
func (w *testEnv) updateService(name string, change func(*corev1.Service)) *corev1.Service {
	w.Helper()
	api := w.Client.CoreV1().Services(w.ns)
	svc, err := api.Get(w.Context(), name, metav1.GetOptions{})
	w.must(err)
	change(svc)
	svc, err = api.Update(w.Context(), svc, metav1.UpdateOptions{})
	w.must(err)
	return svc
}

func (w *testEnv) deleteService(name string) {
	w.Helper()
	w.must(w.Client.CoreV1().Services(w.ns).Delete(w.Context(), name, metav1.DeleteOptions{}))
}

// setEndpoints sets the endpoints of a Service, in a slice for each family.
func (w *testEnv) setEndpoints(service string, pods ...*lab.Host) {
	w.Helper()
	for _, s := range Slices(service, pods) {
		w.setSlice(s)
	}
}

func (w *testEnv) setSlice(s *discoveryv1.EndpointSlice) {
	w.Helper()
	w.must(w.PutSlice(w.Context(), w.ns, s))
}

func (w *testEnv) setNode(zone string, addrs ...string) {
	w.Helper()
	w.must(w.PutNode(w.Context(), w.lab.NodeA.Name(), map[string]string{corev1.LabelTopologyZone: zone}, addrs...))
}

// targets returns the ClusterIPs of a Service, with a port.
func targets(svc *corev1.Service, port uint16) []netip.AddrPort {
	var out []netip.AddrPort
	for _, ip := range svc.Spec.ClusterIPs {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(ip), port))
	}
	return out
}

// waitReached waits until exactly the given pods answer connections to each target.
func (w *testEnv) waitReached(from *lab.Host, to []netip.AddrPort, pods ...*lab.Host) {
	w.Helper()
	for _, target := range to {
		w.eventually(func() error { return checkAnsweredBy(from, lab.TCP, target, pods) })
	}
}

// checkAnsweredBy returns an error unless exactly the given pods answer. Each of three pods
// answers within 60 attempts, except once in a billion runs.
func checkAnsweredBy(from *lab.Host, p lab.Protocol, to netip.AddrPort, pods []*lab.Host) error {
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

// waitOutcome waits until connections to each target have an outcome other than an answer.
func (w *testEnv) waitOutcome(from *lab.Host, to []netip.AddrPort, want lab.Outcome) {
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

// rules returns the nf_tables ruleset of node A.
func (w *testEnv) rules() string {
	return harness.WithoutCounts(w.lab.NodeA.MustRun("nft", "list", "ruleset"))
}
