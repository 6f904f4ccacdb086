//go:build linux

package endurance

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
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
	"github.com/sluice-proxy/sluice/test/machine"
)

// longOutage is how many failed connections to the API server make the pauses between them long.
const longOutage = 8

// syncTimeout bounds the time from a reachable API server until its objects are in the kernel.
const syncTimeout = 3 * time.Second

// apiEnv is a testEnv with Services in an API server, which programs on node A reach by a wire.
type apiEnv struct {
	*testEnv
	*apiserver.Cluster
	wire *apiserver.Wire
}

func TestAPIServer(t *testing.T) {
	t.Parallel()
	c := apiserver.Start(t)
	for _, tt := range []struct {
		name string
		test func(*apiEnv)
	}{
		{"changes of the Node take effect", testNode},
		{"a failed first list is retried", testFirstList},
		{"Services keep working during an outage", testOutage},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &apiEnv{testEnv: newTestEnv(t), Cluster: c}
			kubeconfig, err := c.Kubeconfig("")
			s.must(err)
			s.args = []string{"--kubeconfig=" + kubeconfig, "--hostname-override=node-a", "--cluster-cidr=" + clusterCIDRs}
			s.Cleanup(s.deleteAll)
			s.putNode(nil)
			tt.test(s)
		})
	}
}

// createService creates a dual-stack Service with the given pods as endpoints.
func (s *apiEnv) createService(name string, port int32, pods ...int) []netip.AddrPort {
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
	s.setEndpoints(name, pods...)
	var to []netip.AddrPort
	for _, ip := range svc.Spec.ClusterIPs {
		to = append(to, netip.AddrPortFrom(netip.MustParseAddr(ip), 80))
	}
	return to
}

// setEndpoints makes pods the endpoints of a Service, each with a hint for the zone of its node.
func (s *apiEnv) setEndpoints(name string, pods ...int) {
	s.Helper()
	var backends []*lab.Host
	for _, i := range pods {
		backends = append(backends, s.pods[i])
	}
	for _, slice := range apiserver.Slices(name, backends) {
		for n := range slice.Endpoints {
			zone := []string{"zone-a", "zone-b", "zone-a"}[pods[n]]
			slice.Endpoints[n].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
		s.must(s.PutSlice(s.Context(), "default", slice))
	}
}

func (s *apiEnv) deleteService(name string) {
	s.Helper()
	s.must(s.Client.CoreV1().Services("default").Delete(s.Context(), name, metav1.DeleteOptions{}))
}

// deleteAll deletes the objects of a test.
func (s *apiEnv) deleteAll() {
	ctx := context.Background() // the context of the test has already ended
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

// putNode creates or changes the Node of node A.
func (s *apiEnv) putNode(labels map[string]string, addrs ...string) {
	s.Helper()
	if len(addrs) == 0 {
		addrs = []string{"192.168.0.2", "2001:db8::1"}
	}
	s.must(s.PutNode(s.Context(), "node-a", labels, addrs...))
}

// testNode changes labels, addresses and the podCIDR of the Node.
func testNode(s *apiEnv) {
	s.wire = s.Forward(s, s.lab.NodeA)
	s.createService("web", nodePort, 0, 1, 2)
	s.args = append(s.args[:2], "--detect-local-mode=NodeCIDR", "--nodeport-addresses=primary")
	d := s.start(launch{})
	s.waitServed(s.ways()[4], true)
	traffic := lab.StartSteady(s, pace, s.ways()[:3]...)
	s.waitMasquerade(false) // without a podCIDR no client is known to be local

	patch := []byte(`{"spec":{"podCIDR":"10.99.0.0/24","podCIDRs":["10.99.0.0/24","fd00:10:99::/112"]}}`)
	_, err := s.Client.CoreV1().Nodes().Patch(s.Context(), "node-a", types.StrategicMergePatchType,
		patch, metav1.PatchOptions{})
	s.must(err)
	s.waitMasquerade(true)

	for zone, pods := range map[string][]int{"zone-b": {1}, "zone-a": {0, 2}, "": {0, 1, 2}} {
		labels := map[string]string{corev1.LabelTopologyZone: zone}
		if zone == "" {
			labels = nil
		}
		s.putNode(labels)
		for _, way := range s.ways()[:2] {
			s.waitAnsweredBy(way.From, way.To, pods...)
		}
	}

	first, second := s.ways()[3], s.ways()[3]
	second.To = netip.AddrPortFrom(netip.MustParseAddr(secondaryIP4), nodePort)
	flow, r := first.From.Open(lab.Probe{Protocol: lab.TCP, To: first.To})
	if flow == nil {
		s.Fatal(r)
	}
	defer flow.Close()
	s.putNode(nil, secondaryIP4, "2001:db8::1")
	s.waitServed(second, true)
	s.waitServed(first, false)
	if r := flow.Ask([]byte("ping")); r.Outcome != lab.Answered || !r.Echoed {
		s.Errorf("the open connection to the old primary address: %s", r)
	}
	s.checkTraffic(traffic)
	s.checkDiff()
	d.checkAlive()
}

// testFirstList starts without a reachable API server, without one permission, and without CAP_NET_ADMIN.
func testFirstList(s *apiEnv) {
	to := s.createService("late", 0, 0)
	way := lab.Way{From: s.client, To: to[0]}
	s.wire = s.Forward(s, s.lab.NodeA)
	s.wire.Cut()
	d := s.start(launch{})
	d.waitForLog("Cannot reach the API server")
	s.waitMetric("sluice_source_connected", "0")
	s.waitAttempts(longOutage)
	if rules := s.rules(); rules != "" {
		s.Errorf("before the first list the kernel has rules:\n%s", rules)
	}
	s.checkWithin(syncTimeout, "the API server is reachable", s.wire.Mend, way)
	d.checkLoggedOnce("Cannot reach the API server")
	d.checkLoggedOnce("The API server answers again")
	d.kill()

	// One kind of object is forbidden.
	roles := s.Client.RbacV1().ClusterRoles()
	role, err := roles.Get(s.Context(), "sluice", metav1.GetOptions{})
	s.must(err)
	rules := slices.Clone(role.Rules)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "endpointslices")
	})
	role, err = roles.Update(s.Context(), role, metav1.UpdateOptions{})
	s.must(err)
	d = s.start(launch{})
	d.waitForLog("The API server forbids reading")
	s.waitServed(way, true)
	s.checkUnlisted("forbidden")
	if out, _ := s.runSluice("diff"); !regexp.MustCompile(`in the kernel: [1-9][0-9]* objects`).MatchString(out) {
		s.Errorf("sluice diff does not say that an earlier run left rules:\n%s", out)
	}
	d.kill()
	s.lab.NodeA.MustRun("nft", "flush", "ruleset")
	d = s.start(launch{})
	d.waitForLog("The API server forbids reading")
	if rules := s.rules(); rules != "" {
		s.Errorf("without EndpointSlices the kernel has rules:\n%s", rules)
	}
	s.checkWithin(syncTimeout, "the permission is granted", func() {
		role.Rules = rules
		_, err = roles.Update(s.Context(), role, metav1.UpdateOptions{})
		s.must(err)
	}, way)
	d.checkLoggedOnce("The API server forbids reading")
	d.kill()

	// Without the capability Sluice exits.
	began := time.Now()
	out, status := s.runSluiceWith(launch{restriction: noNetAdmin}, s.args...)
	if status == 0 || !strings.Contains(out, "CAP_NET_ADMIN") || time.Since(began) > machine.Scale(5*time.Second) {
		s.Errorf("without CAP_NET_ADMIN it exits after %v with %d; its output:\n%s", time.Since(began), status, out)
	}
}

// checkUnlisted verifies that before all objects have arrived no command answers as if it knew them. They say why.
func (s *apiEnv) checkUnlisted(why string) {
	s.Helper()
	for _, args := range [][]string{{"get", "services"}, {"explain", "node", "default/web:http"}, {"diff"}, {"status"}} {
		out, status := s.runSluice(args...)
		if status == 0 || !strings.Contains(out, "not all Services have arrived yet") || !strings.Contains(out, why) {
			s.Errorf("sluice %s exits with %d:\n%s", strings.Join(args, " "), status, out)
		}
	}
}

// waitAttempts waits until Sluice has started n more connections to the API server.
func (s *apiEnv) waitAttempts(n int) {
	s.Helper()
	want := s.wire.Attempts() + n
	s.eventually(func() error {
		if n := s.wire.Attempts(); n < want {
			return fmt.Errorf("%d connections to the API server were started, want %d", n, want)
		}
		return nil
	})
}

// waitIdle waits until everything that Sluice has received is in the kernel.
func (s *apiEnv) waitIdle() {
	s.Helper()
	s.eventually(func() error {
		now, err := s.status()
		if err == nil && (now.Pending > 0 || now.Busy != "" || !now.Lag.Since.IsZero()) {
			err = fmt.Errorf("%w: %d pending, %s", errBehind, now.Pending, now.Busy)
		}
		return err
	})
}

// checkWithin does something, waits until connections on a way succeed, and verifies that this
// took at most the given time, on a fast machine.
func (s *apiEnv) checkWithin(most time.Duration, event string, do func(), way lab.Way) {
	s.Helper()
	do()
	began := time.Now()
	s.waitServed(way, true)
	took, most := time.Since(began), machine.Scale(most)
	s.Logf("connections work %v after %s", took, event)
	if took > most {
		s.Errorf("connections work %v after %s, want at most %v", took, event, most)
	}
}

// testOutage stops the API server and its store. After they are started again Sluice still
// cannot reach them, and misses events.
func testOutage(s *apiEnv) {
	s.wire = s.Forward(s, s.lab.NodeA)
	s.createService("web", nodePort, 0, 1, 2)
	deleted := lab.Way{From: s.client, To: s.createService("deleted", 0, 0)[0]}
	shrinks := lab.Way{From: s.client, To: s.createService("shrinks", 0, 0, 1, 2)[0]}
	d := s.start(launch{})
	s.waitServed(deleted, true)
	s.waitAnsweredBy(shrinks.From, shrinks.To, 0, 1, 2)
	s.waitServed(s.ways()[4], true)
	traffic := s.startTraffic()
	events := s.events()

	restart := sync.OnceFunc(func() {
		s.must(s.StartStore())
		s.must(s.StartServer())
		s.eventually(func() error {
			_, err := s.Client.Discovery().ServerVersion()
			return err
		})
	})
	s.Cleanup(restart)
	s.must(s.StopServer())
	s.must(s.StopStore())
	s.waitMetric("sluice_source_connected", "0")
	s.waitIdle()
	events.drain() // on shutdown the API server removes the endpoint of its own Service
	s.waitAttempts(longOutage)
	d.checkLoggedOnce("Cannot reach the API server")
	if out, _ := s.runSluice("status"); !strings.Contains(out, "unreachable") {
		s.Errorf("sluice status does not say that the API server is unreachable:\n%s", out)
	}

	s.wire.Cut()
	restart()
	s.deleteService("deleted")
	s.setEndpoints("shrinks", 1)
	fresh := lab.Way{From: s.client, To: s.createService("fresh", 0, 2)[0]}
	s.waitAttempts(2)
	if changed := events.containing(""); len(changed) > 0 {
		s.Errorf("rules changed during the outage:\n%s", strings.Join(changed, "\n"))
	}
	s.waitServed(deleted, true)
	s.checkWithin(syncTimeout, "the API server is reachable again", s.wire.Mend, fresh)
	s.waitAnsweredBy(shrinks.From, shrinks.To, 1)
	s.waitServed(deleted, false)
	s.waitMetric("sluice_source_connected", "1")
	for _, l := range events.containing("delete") {
		if strings.Contains(l, "delete table") || strings.Contains(l, "delete chain") && strings.Contains(l, "frontends") {
			s.Errorf("a table or chain was deleted: %s", l)
		}
	}
	d.checkLoggedOnce("Cannot reach the API server")
	d.checkLoggedOnce("The API server answers again")
	s.checkTraffic(traffic)
	s.checkDiff()
}
