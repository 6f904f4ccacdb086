//go:build linux

package takeover

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// timeout bounds the wait for an expected event.
const timeout = time.Minute

// All addresses and ports are fixed, so that recorded rules match.
const (
	clusterIP4, clusterIP6 = "172.30.0.80", "fd00:172:30::80"
	stickyIP4, stickyIP6   = "172.30.0.81", "fd00:172:30::81"
	emptyIP4, emptyIP6     = "172.30.0.82", "fd00:172:30::82"
	nodePort               = 30080
	clusterCIDRs           = "10.180.0.0/16,fd00:10:180::/48"
)

// testEnv is a lab with three backends and a client, Services of several kinds for them in a
// real API server, and node A to take over.
type testEnv struct {
	*apiserver.Cluster
	*testing.T
	lab       *lab.Lab
	client    *lab.Host // a pod on node A
	pods      [3]*lab.Host
	ns        string
	deleteAll func() // deletes the objects of the test, once
}

// newTestEnv returns an environment with a new namespace.
func newTestEnv(t *testing.T, c *apiserver.Cluster) *testEnv {
	t.Helper()
	ns, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return newTestEnvIn(t, c, ns.Name)
}

// newTestEnvIn returns an environment with its Services in this namespace, which it creates if needed.
func newTestEnvIn(t *testing.T, c *apiserver.Cluster, namespace string) *testEnv {
	l := lab.New(t, lab.Options{Timeout: time.Second})
	client, pods := harness.Pods(l, 3)
	w := &testEnv{Cluster: c, T: t, lab: l, ns: namespace, client: client, pods: [3]*lab.Host(pods)}
	_, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		w.must(err)
	}
	w.deleteAll = sync.OnceFunc(w.deleteObjects)
	t.Cleanup(w.deleteAll)
	w.must(c.PutNode(t.Context(), l.NodeA.Name(), nil, "192.168.0.2", "2001:db8::1"))
	w.createServices()
	c.Forward(t, l.NodeA)
	return w
}

func (w *testEnv) deleteObjects() {
	ctx := context.Background() // the context of the test has already ended
	for _, name := range []string{"web", "sticky", "empty"} {
		w.must(w.Client.CoreV1().Services(w.ns).Delete(ctx, name, metav1.DeleteOptions{}))
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

// eventually calls try until it returns no error.
func (w *testEnv) eventually(try func() error) {
	w.Helper()
	harness.Eventually(w, timeout, try)
}

// createServices creates a Service with all kinds of addresses, one with affinity and one without endpoints.
func (w *testEnv) createServices() {
	w.createService("web", [2]string{clusterIP4, clusterIP6}, func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.Ports[0].NodePort = nodePort
		s.ExternalIPs = []string{"203.0.113.90", "2001:db8:113::90"}
		s.LoadBalancerSourceRanges = []string{"203.0.113.0/25", "2001:db8:113::/121"}
	})
	w.setVIPs()
	w.createService("sticky", [2]string{stickyIP4, stickyIP6}, func(s *corev1.ServiceSpec) {
		s.SessionAffinity = corev1.ServiceAffinityClientIP
	})
	w.createService("empty", [2]string{emptyIP4, emptyIP6}, func(*corev1.ServiceSpec) {})
	w.setEndpoints("web")
	w.setEndpoints("sticky")
}

func (w *testEnv) createService(name string, ips [2]string, change func(*corev1.ServiceSpec)) {
	w.Helper()
	both := corev1.IPFamilyPolicyRequireDualStack
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		ClusterIP: ips[0], ClusterIPs: ips[:], IPFamilyPolicy: &both,
		Ports: []corev1.ServicePort{{Port: 80}},
	}}
	change(&svc.Spec)
	_, err := w.Client.CoreV1().Services(w.ns).Create(w.Context(), svc, metav1.CreateOptions{})
	w.must(err)
}

// setVIPs sets the load balancer addresses, like a cloud controller.
func (w *testEnv) setVIPs() {
	w.Helper()
	api := w.Client.CoreV1().Services(w.ns)
	svc, err := api.Get(w.Context(), "web", metav1.GetOptions{})
	w.must(err)
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.77"}, {IP: "2001:db8:113::77"}}
	_, err = api.UpdateStatus(w.Context(), svc, metav1.UpdateOptions{})
	w.must(err)
}

// setEndpoints makes all pods endpoints of a Service.
func (w *testEnv) setEndpoints(service string) {
	w.Helper()
	for _, s := range apiserver.Slices(service, w.pods[:]) {
		w.must(w.PutSlice(w.Context(), w.ns, s))
	}
}

// ways are connections from a pod, from the node and from outside, in both families.
func (w *testEnv) ways() []lab.Way {
	var out []lab.Way
	add := func(from *lab.Host, port uint16, addrs ...string) {
		for _, a := range addrs {
			out = append(out, lab.Way{From: from, To: netip.AddrPortFrom(netip.MustParseAddr(a), port)})
		}
	}
	add(w.client, 80, clusterIP4, clusterIP6, stickyIP4, stickyIP6)
	add(w.lab.NodeA, 80, clusterIP4, clusterIP6)
	add(w.lab.Outside, nodePort, "192.168.0.2", "2001:db8::1")
	add(w.lab.Outside, 80, "203.0.113.90", "2001:db8:113::90", "203.0.113.77", "2001:db8:113::77")
	return out
}

// pace is how often each way sends on an open connection, and opens a new one.
const pace = 10 * time.Millisecond

// startTraffic starts continuous connections on all ways, none of which may fail.
func (w *testEnv) startTraffic() *lab.Steady {
	w.Helper()
	return lab.StartSteady(w, pace, w.ways()...)
}

// checkReachable returns an error if a connection on any way fails.
func (w *testEnv) checkReachable(within time.Duration) error {
	for _, v := range w.ways() {
		r := v.From.Try(lab.Probe{Protocol: lab.TCP, To: v.To, Timeout: within})
		if r.Outcome != lab.Answered {
			return fmt.Errorf("%s: %s", v, r)
		}
	}
	return nil
}

// waitReachable waits until connections on all ways succeed.
func (w *testEnv) waitReachable() {
	w.Helper()
	w.eventually(func() error { return w.checkReachable(lab.Soon) })
}
