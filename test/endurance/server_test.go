//go:build linux

package endurance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

// longOutage is how many connections to the API server Sluice begins in vain until
// its pauses between them have grown.
const longOutage = 8

// soon is how long it takes at most, once a server is there, until the kernel
// does what it says.
const soon = 3 * time.Second

// served is a world whose Services are in an API server, which programs on node A
// reach by a wire.
type served struct {
	*world
	*apiserver.Cluster
	wire *apiserver.Wire
}

func TestAPIServer(t *testing.T) {
	t.Parallel()
	c := apiserver.Start(t)
	for _, story := range []struct {
		name string
		test func(*served)
	}{
		{"a Node that changes is followed", testNode},
		{"a first list that fails comes through soon after", testFirst},
		{"an outage is lived through", testOutage},
	} {
		t.Run(story.name, func(t *testing.T) {
			s := &served{world: newWorld(t), Cluster: c}
			kubeconfig, err := c.Kubeconfig("")
			s.must(err)
			s.args = []string{"--kubeconfig=" + kubeconfig, "--hostname-override=node-a", "--cluster-cidr=" + clusterCIDRs}
			s.Cleanup(s.sweep)
			s.node(nil)
			story.test(s)
		})
	}
}

// put makes a dual stack Service with these of the pods behind it.
func (s *served) put(name string, port int32, pods ...int) []netip.AddrPort {
	s.Helper()
	both := corev1.IPFamilyPolicyRequireDualStack
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		IPFamilyPolicy: &both, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	if port != 0 {
		svc.Spec.Type, svc.Spec.ClusterIP, svc.Spec.ClusterIPs = corev1.ServiceTypeNodePort, webIP4, []string{webIP4, webIP6}
		svc.Spec.Ports[0].NodePort = port
	}
	svc, err := s.Client.CoreV1().Services("default").Create(s.Context(), svc, metav1.CreateOptions{})
	s.must(err)
	s.back(name, pods...)
	var to []netip.AddrPort
	for _, ip := range svc.Spec.ClusterIPs {
		to = append(to, netip.AddrPortFrom(netip.MustParseAddr(ip), 80))
	}
	return to
}

// back puts pods behind a Service, each with a hint for the zone of its node.
func (s *served) back(name string, pods ...int) {
	s.Helper()
	var behind []*lab.Host
	for _, i := range pods {
		behind = append(behind, s.pods[i])
	}
	for _, slice := range apiserver.Slices(name, behind) {
		for n := range slice.Endpoints {
			zone := []string{"zone-a", "zone-b", "zone-a"}[pods[n]]
			slice.Endpoints[n].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
		s.must(s.PutSlice(s.Context(), "default", slice))
	}
}

func (s *served) remove(name string) {
	s.Helper()
	s.must(s.Client.CoreV1().Services("default").Delete(s.Context(), name, metav1.DeleteOptions{}))
}

// sweep deletes what a test made, which nobody else would.
func (s *served) sweep() {
	ctx := context.Background() // that of the test is over
	all, err := s.Client.CoreV1().Services("default").List(ctx, metav1.ListOptions{})
	s.must(err)
	for _, svc := range all.Items {
		if svc.Name != "kubernetes" {
			s.must(s.Client.CoreV1().Services("default").Delete(ctx, svc.Name, metav1.DeleteOptions{}))
		}
	}
	_ = s.Client.DiscoveryV1().EndpointSlices("default").DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "!=kubernetes"})
	s.must(s.Client.CoreV1().Nodes().Delete(ctx, "node-a", metav1.DeleteOptions{}))
}

// node makes the Node of node A, or changes it.
func (s *served) node(labels map[string]string, addrs ...string) {
	s.Helper()
	if len(addrs) == 0 {
		addrs = []string{"192.168.0.2", "2001:db8::1"}
	}
	s.must(s.PutNode(s.Context(), "node-a", labels, addrs...))
}

// testNode: labels, addresses and the pod range of the Node count as they come.
func testNode(s *served) {
	s.wire = s.Forward(s, s.lab.NodeA)
	s.put("web", nodePort, 0, 1, 2)
	s.args = append(s.args[:2], "--detect-local-mode=NodeCIDR", "--nodeport-addresses=primary")
	d := s.start(launch{})
	s.serves(s.ways()[4], true)
	traffic := lab.StartSteady(s, pace, s.ways()[:3]...)
	s.masquerades(false) // as long as it is not known who is local

	patch := []byte(`{"spec":{"podCIDR":"10.99.0.0/24","podCIDRs":["10.99.0.0/24","fd00:10:99::/112"]}}`)
	_, err := s.Client.CoreV1().Nodes().Patch(s.Context(), "node-a", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	s.must(err)
	s.masquerades(true)

	for zone, pods := range map[string][]int{"zone-b": {1}, "zone-a": {0, 2}, "": {0, 1, 2}} {
		labels := map[string]string{corev1.LabelTopologyZone: zone}
		if zone == "" {
			labels = nil
		}
		s.node(labels)
		for _, way := range s.ways()[:2] {
			s.answeredBy(way.From, way.To, pods...)
		}
	}

	first, second := s.ways()[3], s.ways()[3]
	second.To = netip.AddrPortFrom(netip.MustParseAddr(other), nodePort)
	flow, r := first.From.Open(lab.Probe{Protocol: lab.TCP, To: first.To})
	if flow == nil {
		s.Fatal(r)
	}
	defer flow.Close()
	s.node(nil, other, "2001:db8::1")
	s.serves(second, true)
	s.serves(first, false)
	if r := flow.Ask([]byte("still there?")); r.Outcome != lab.Answered || !r.Echoed {
		s.Errorf("the connection to the old primary address: %s", r)
	}
	s.unharmed(traffic)
	s.same()
	d.alive()
}

// testFirst: without a server, without a right, without a privilege.
func testFirst(s *served) {
	to := s.put("late", 0, 0)
	way := lab.Way{From: s.client, To: to[0]}
	s.wire = s.Forward(s, s.lab.NodeA)
	s.wire.Cut()
	d := s.start(launch{})
	d.says("Cannot reach the API server")
	s.measures("sluice_source_connected", "0")
	s.attempts(longOutage)
	if rules := s.rules(); rules != "" {
		s.Errorf("without any list the kernel holds:\n%s", rules)
	}
	s.within(soon, "the server is there", s.wire.Mend, way)
	d.once("Cannot reach the API server")
	d.once("The API server answers again")
	d.kill()

	// One kind is forbidden.
	roles := s.Client.RbacV1().ClusterRoles()
	role, err := roles.Get(s.Context(), "sluice", metav1.GetOptions{})
	s.must(err)
	whole := slices.Clone(role.Rules)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "endpointslices") })
	role, err = roles.Update(s.Context(), role, metav1.UpdateOptions{})
	s.must(err)
	s.lab.NodeA.MustRun("nft", "flush", "ruleset")
	d = s.start(launch{})
	d.says("The API server forbids reading")
	if rules := s.rules(); rules != "" {
		s.Errorf("with half a picture the kernel holds:\n%s", rules)
	}
	s.within(soon, "the right is there", func() {
		role.Rules = whole
		_, err = roles.Update(s.Context(), role, metav1.UpdateOptions{})
		s.must(err)
	}, way)
	d.once("The API server forbids reading")
	d.kill()

	// Without the privilege there is nothing to wait for.
	began := time.Now()
	out, status := s.runs(launch{hardship: powerless}, s.args...)
	if status == 0 || !strings.Contains(out, "CAP_NET_ADMIN") || time.Since(began) > 5*time.Second {
		s.Errorf("without CAP_NET_ADMIN it ends after %v with %d and says:\n%s", time.Since(began), status, out)
	}
}

// attempts waits until Sluice has begun n more connections to the API server.
func (s *served) attempts(n int) {
	s.Helper()
	want := s.wire.Attempts() + n
	s.eventually(func() error {
		if n := s.wire.Attempts(); n < want {
			return fmt.Errorf("%d connections to the API server were begun, want %d", n, want)
		}
		return nil
	})
}

// caughtUp waits until all that Sluice has received is in the kernel.
func (s *served) caughtUp() {
	s.Helper()
	s.eventually(func() error {
		now, err := s.status()
		if err == nil && (now.Pending > 0 || now.Busy != "" || !now.Lag.Oldest.IsZero()) {
			err = fmt.Errorf("%w: %d pending, %s", errBehind, now.Pending, now.Busy)
		}
		return err
	})
}

// within waits until a way is open, and complains if that took long.
func (s *served) within(most time.Duration, what string, do func(), way lab.Way) {
	s.Helper()
	do()
	began := time.Now()
	s.serves(way, true)
	took := time.Since(began)
	s.Logf("connections work %v after %s", took, what)
	if took > most {
		s.Errorf("connections work %v after %s, want within %v", took, what, most)
	}
}

// testOutage: the API server and its store go away. When they are back Sluice
// cannot reach them still, and misses what happens.
func testOutage(s *served) {
	s.wire = s.Forward(s, s.lab.NodeA)
	s.put("web", nodePort, 0, 1, 2)
	goes := lab.Way{From: s.client, To: s.put("goes", 0, 0)[0]}
	shrinks := lab.Way{From: s.client, To: s.put("shrinks", 0, 0, 1, 2)[0]}
	d := s.start(launch{})
	s.serves(goes, true)
	s.answeredBy(shrinks.From, shrinks.To, 0, 1, 2)
	s.serves(s.ways()[4], true)
	traffic := s.traffic()
	events := s.events()

	back := sync.OnceFunc(func() {
		s.must(s.StartStore())
		s.must(s.StartServer())
		s.eventually(func() error {
			_, err := s.Client.Discovery().ServerVersion()
			return err
		})
	})
	s.Cleanup(back)
	s.must(s.StopServer())
	s.must(s.StopStore())
	s.measures("sluice_source_connected", "0")
	s.caughtUp()
	events.drain() // at its end the server removes the endpoint of its own Service
	s.attempts(longOutage)
	d.once("Cannot reach the API server")
	if out, _ := s.asks("status"); !strings.Contains(out, "unreachable") {
		s.Errorf("sluice status does not say that the API server is unreachable:\n%s", out)
	}

	s.wire.Cut()
	back()
	s.remove("goes")
	s.back("shrinks", 1)
	fresh := lab.Way{From: s.client, To: s.put("fresh", 0, 2)[0]}
	s.attempts(2)
	if changed := events.with(""); len(changed) > 0 {
		s.Errorf("during the outage rules change:\n%s", strings.Join(changed, "\n"))
	}
	s.serves(goes, true)
	s.within(soon, "the server can be reached", s.wire.Mend, fresh)
	s.answeredBy(shrinks.From, shrinks.To, 1)
	s.serves(goes, false)
	s.measures("sluice_source_connected", "1")
	for _, l := range events.with("delete") {
		if strings.Contains(l, "delete table") || strings.Contains(l, "delete chain") && strings.Contains(l, "frontends") {
			s.Errorf("something was flushed: %s", l)
		}
	}
	d.once("Cannot reach the API server")
	d.once("The API server answers again")
	s.unharmed(traffic)
	s.same()
}
