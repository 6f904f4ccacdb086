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

// patience is how long what must happen may take.
const patience = time.Minute

// All addresses and ports are fixed, so that rules recorded once fit always.
const (
	clusterIP4, clusterIP6 = "172.30.0.80", "fd00:172:30::80"
	stickyIP4, stickyIP6   = "172.30.0.81", "fd00:172:30::81"
	emptyIP4, emptyIP6     = "172.30.0.82", "fd00:172:30::82"
	nodePort               = 30080
	clusterCIDRs           = "10.180.0.0/16,fd00:10:180::/48"
)

// world is a lab with three backends and a client, Services of several kinds for
// them in a real API server, and node A to be taken over.
type world struct {
	*apiserver.Cluster
	*testing.T
	lab    *lab.Lab
	client *lab.Host // a pod on node A
	pods   [3]*lab.Host
	ns     string
	sweep  func() // deletes what the test made, which nobody else would
}

// recordedIn is the namespace of the Services in testdata.
const recordedIn = "recorded"

// newWorld makes one with a namespace of its own.
func newWorld(t *testing.T, c *apiserver.Cluster) *world {
	t.Helper()
	ns, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return newWorldIn(t, c, ns.Name)
}

// newWorldIn makes one with its Services in this namespace, which is made if it
// is not there.
func newWorldIn(t *testing.T, c *apiserver.Cluster, namespace string) *world {
	l := lab.New(t, lab.Options{Timeout: time.Second})
	client, pods := harness.Pods(l, 3)
	w := &world{Cluster: c, T: t, lab: l, ns: namespace, client: client, pods: [3]*lab.Host(pods)}
	_, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		w.must(err)
	}
	w.sweep = sync.OnceFunc(w.clear)
	t.Cleanup(w.sweep)
	w.must(c.PutNode(t.Context(), l.NodeA.Name(), nil, "192.168.0.2", "2001:db8::1"))
	w.services()
	c.Forward(t, l.NodeA)
	return w
}

// clear deletes what the test made, which nobody else would.
func (w *world) clear() {
	ctx := context.Background() // that of the test is over
	for _, name := range []string{"web", "sticky", "empty"} {
		w.must(w.Client.CoreV1().Services(w.ns).Delete(ctx, name, metav1.DeleteOptions{}))
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

// eventually tries until there is no error.
func (w *world) eventually(try func() error) {
	w.Helper()
	harness.Eventually(w, patience, try)
}

// services makes one with everything, one with affinity and one without backends.
func (w *world) services() {
	w.create("web", [2]string{clusterIP4, clusterIP6}, func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.Ports[0].NodePort = nodePort
		s.ExternalIPs = []string{"203.0.113.90", "2001:db8:113::90"}
		s.LoadBalancerSourceRanges = []string{"203.0.113.0/25", "2001:db8:113::/121"}
	})
	w.setVIPs()
	w.create("sticky", [2]string{stickyIP4, stickyIP6}, func(s *corev1.ServiceSpec) {
		s.SessionAffinity = corev1.ServiceAffinityClientIP
	})
	w.create("empty", [2]string{emptyIP4, emptyIP6}, func(*corev1.ServiceSpec) {})
	w.back("web")
	w.back("sticky")
}

func (w *world) create(name string, ips [2]string, change func(*corev1.ServiceSpec)) {
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

// setVIPs does what a cloud does.
func (w *world) setVIPs() {
	w.Helper()
	api := w.Client.CoreV1().Services(w.ns)
	svc, err := api.Get(w.Context(), "web", metav1.GetOptions{})
	w.must(err)
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.77"}, {IP: "2001:db8:113::77"}}
	_, err = api.UpdateStatus(w.Context(), svc, metav1.UpdateOptions{})
	w.must(err)
}

// back puts all pods behind a Service.
func (w *world) back(service string) {
	w.Helper()
	for _, s := range apiserver.Slices(service, w.pods[:]) {
		w.must(w.PutSlice(w.Context(), w.ns, s))
	}
}

// ways are from a pod, from the node itself and from outside, in both families.
func (w *world) ways() []lab.Way {
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

// pace is how often something is sent on each way, and a new connection made.
const pace = 10 * time.Millisecond

// start makes traffic on all ways, which must not notice what goes on.
func (w *world) start() *lab.Steady {
	w.Helper()
	return lab.StartSteady(w, pace, w.ways()...)
}

// reachable says who does not answer in time.
func (w *world) reachable(within time.Duration) error {
	for _, v := range w.ways() {
		r := v.From.Try(lab.Probe{Protocol: lab.TCP, To: v.To, Timeout: within})
		if r.Outcome != lab.Answered {
			return fmt.Errorf("%s: %s", v, r)
		}
	}
	return nil
}

// served waits until all ways are served.
func (w *world) served() {
	w.Helper()
	w.eventually(func() error { return w.reachable(lab.Soon) })
}
