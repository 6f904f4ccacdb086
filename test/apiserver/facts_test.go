//go:build linux

package apiserver

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

func testServiceCIDRs(w *testEnv) {
	w.run()
	w.setEndpoints("web", w.pods[0])
	inRange := func(range4 string) func() error {
		return func() error {
			if !strings.Contains(w.rules(), range4) {
				return fmt.Errorf("%s is not in the kernel", range4)
			}
			return nil
		}
	}
	w.eventually(inRange(ServiceCIDR4))

	// Packets for addresses of no ServiceCIDR leave the node; those for unallocated addresses of a ServiceCIDR do not.
	tap := w.lab.Outside.Tap()
	stray := ports(80, "172.31.0.9")[0]
	w.client.Try(lab.Probe{Protocol: lab.TCP, To: stray, Timeout: lab.Soon})
	leaked := func(p lab.Packet) bool { return p.Dst == stray }
	if tap.Count(leaked) == 0 {
		w.Fatalf("a packet for %s did not leave the node: %v", stray, tap.Packets())
	}

	api := w.Client.NetworkingV1().ServiceCIDRs()
	more, err := api.Create(w.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.31.0.0/24"}},
	}, metav1.CreateOptions{})
	w.must(err)
	more.Status.Conditions = []metav1.Condition{{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "Test",
		LastTransitionTime: metav1.Now(),
	}} // like its controller
	_, err = api.UpdateStatus(w.Context(), more, metav1.UpdateOptions{})
	w.must(err)
	w.eventually(inRange("172.31.0.0/24"))
	tap.Reset()
	w.waitOutcome(w.client, ports(80, stray.Addr().String()), lab.TimedOut)
	if tap.Count(leaked) > 0 {
		w.Errorf("packets for %s still leave the node", stray)
	}

	svc := w.allocate("172.31.0.20")
	w.waitReached(w.client, targets(svc, 80), w.pods[0])
	w.deleteService("web")

	w.must(api.Delete(w.Context(), "more", metav1.DeleteOptions{}))
	w.eventually(func() error {
		if inRange("172.31.0.0/24")() == nil {
			return fmt.Errorf("the range is still in the kernel")
		}
		return nil
	})
	w.must(inRange(ServiceCIDR4)())
}

// allocate creates Service web with an address of a new range, which the API server may not know at once.
func (w *testEnv) allocate(ip string) *corev1.Service {
	w.Helper()
	single := corev1.IPFamilyPolicySingleStack
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, IPFamilyPolicy: &single, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	var made *corev1.Service
	w.eventually(func() error {
		var err error
		made, err = w.Client.CoreV1().Services(w.ns).Create(w.Context(), svc, metav1.CreateOptions{})
		return err
	})
	return made
}

func testZone(w *testEnv) {
	w.run()
	svc := w.createService()
	for _, s := range Slices("web", w.pods[:2]) {
		for i, zone := range []string{"zone-a", "zone-b"} {
			s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
		w.setSlice(s)
	}
	to := targets(svc, 80)
	w.waitReached(w.client, to, w.pods[0])
	w.setNode("zone-b", "192.168.0.2", "2001:db8::1")
	w.waitReached(w.client, to, w.pods[1])
	w.setNode("zone-c", "192.168.0.2", "2001:db8::1") // no endpoint has this hint, so hints are ignored
	w.waitReached(w.client, to, w.pods[:2]...)
}

func testNodeAddress(w *testEnv) {
	w.run("--nodeport-addresses=primary")
	w.setEndpoints("web", w.pods[0])
	svc := w.createService(func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeNodePort })
	first := w.nodePorts(svc)
	second := ports(first[0].Port(), "192.168.1.2", "2001:db8:1::2")
	w.waitReached(w.lab.Outside, first, w.pods[0])
	w.waitOutcome(w.lab.Outside, second, lab.Reset)
	w.setNode("zone-a", "192.168.1.2", "2001:db8:1::2")
	w.waitReached(w.lab.Outside, second, w.pods[0])
	w.waitOutcome(w.lab.Outside, first, lab.Reset)
}

// EndpointSlices name the pods behind endpoints, so that users need not know the addresses of the pods of their node.
func testPodNames(w *testEnv) {
	w.run()
	w.createService()
	for _, s := range Slices("web", w.pods[:2]) {
		for i, node := range []string{w.lab.NodeA.Name(), w.lab.NodeB.Name()} {
			s.Endpoints[i].NodeName = &node
			s.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: w.ns, Name: fmt.Sprint("web-", i)}
		}
		w.setSlice(s)
	}
	ask := func(pod string) (a explain.Answer, err error) {
		query := url.Values{"source": {pod}, "destination": {"web." + w.ns + ".svc.cluster.local:80"}}
		err = admin.Dial(admin.Options{NetNS: w.lab.NodeA.NetNSFD()}).Get(w.Context(), "/explain", query, &a)
		return a, err
	}
	address := w.pods[0].Addr(netip.IPv4Unspecified()).String()
	w.eventually(func() error {
		a, err := ask("web-0")
		if err != nil { // as before the first write
			return err
		}
		if len(a.Cases) != 2 || a.Source != w.ns+"/web-0" || a.Cases[0].Client.Address != address {
			return fmt.Errorf("pod web-0: %+v", a)
		}
		return nil
	})
	a, err := ask(w.ns + "/web-1")
	if err != nil || !strings.HasPrefix(a.Unanswered, "the address of pod "+w.ns+"/web-1 is not known") {
		w.Errorf("a pod of another node: %+v, %v", a, err)
	}
}
