//go:build linux

package apiserver

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/test/lab"
)

func testChanges(w *testEnv) {
	w.run()
	svc := w.createService()
	to := targets(svc, 80)
	if len(to) != 2 {
		w.Fatalf("the API server assigned %v, want an address of each family", to)
	}
	w.waitOutcome(w.client, to, lab.Refused)

	w.setEndpoints("web", w.pods[0])
	w.waitReached(w.client, to, w.pods[0])
	w.setEndpoints("web", w.pods[:]...)
	w.waitReached(w.client, to, w.pods[:]...)
	w.setEndpoints("web", w.pods[1:]...)
	w.waitReached(w.client, to, w.pods[1:]...)

	svc = w.updateService("web", func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 8080 })
	w.waitReached(w.client, targets(svc, 8080), w.pods[1:]...)
	w.waitOutcome(w.client, to, lab.Refused)

	w.setEndpoints("web")
	w.waitOutcome(w.client, targets(svc, 8080), lab.Refused)
	w.setEndpoints("web", w.pods[0])
	w.waitReached(w.client, targets(svc, 8080), w.pods[0])

	w.deleteService("web")
	w.waitOutcome(w.client, targets(svc, 8080), lab.TimedOut) // unallocated, in a known ServiceCIDR

	svc = w.createService()
	w.waitReached(w.client, targets(svc, 80), w.pods[0])
}

func testTypes(w *testEnv) {
	w.run("--nodeport-addresses=primary")
	w.setEndpoints("web", w.pods[0])
	svc := w.createService()
	cluster := targets(svc, 80)
	w.waitReached(w.client, cluster, w.pods[0])

	svc = w.updateService("web", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeNodePort })
	node := w.nodePorts(svc)
	w.waitReached(w.lab.Outside, node, w.pods[0])

	w.updateService("web", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.LoadBalancerSourceRanges = []string{"203.0.113.0/25", "2001:db8:113::/121"}
	})
	vips := ports(80, "203.0.113.77", "2001:db8:113::77")
	w.setVIPs("web", corev1.LoadBalancerIPModeVIP)
	w.waitReached(w.client, cluster, w.pods[0])
	w.waitReached(w.lab.Outside, node, w.pods[0])
	w.waitReached(w.lab.Outside, vips, w.pods[0])
	w.waitOutcome(w.lab.Blocked, vips, lab.TimedOut)

	// With ipMode Proxy the load balancer terminates connections, and the lab has no load balancer.
	w.setVIPs("web", corev1.LoadBalancerIPModeProxy)
	w.waitOutcome(w.client, vips, lab.TimedOut)
	w.waitReached(w.client, cluster, w.pods[0])

	w.updateService("web", func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeClusterIP, nil
		svc.Spec.Ports[0].NodePort = 0
	})
	w.waitOutcome(w.lab.Outside, node, lab.Reset)
	w.waitReached(w.client, cluster, w.pods[0])
}

// setVIPs sets the load balancer addresses, like a cloud controller.
func (w *testEnv) setVIPs(name string, mode corev1.LoadBalancerIPMode) {
	w.Helper()
	api := w.Client.CoreV1().Services(w.ns)
	svc, err := api.Get(w.Context(), name, metav1.GetOptions{})
	w.must(err)
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "203.0.113.77", IPMode: &mode}, {IP: "2001:db8:113::77", IPMode: &mode},
	}
	_, err = api.UpdateStatus(w.Context(), svc, metav1.UpdateOptions{})
	w.must(err)
}

func testExternalName(w *testEnv) {
	w.run()
	w.setEndpoints("web", w.pods[0])
	none := func(svc *corev1.Service) {
		svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
	}
	full := func(kind corev1.ServiceType) func(*corev1.Service) {
		both := corev1.IPFamilyPolicyPreferDualStack
		return func(svc *corev1.Service) {
			svc.Spec = corev1.ServiceSpec{Type: kind, IPFamilyPolicy: &both, Ports: []corev1.ServicePort{{Port: 80}}}
		}
	}
	w.createService(none)
	svc := w.updateService("web", full(corev1.ServiceTypeClusterIP))
	w.waitReached(w.client, targets(svc, 80), w.pods[0])

	old := targets(svc, 80)
	w.updateService("web", none)
	w.waitOutcome(w.client, old, lab.TimedOut)

	svc = w.updateService("web", full(corev1.ServiceTypeNodePort))
	w.waitReached(w.client, targets(svc, 80), w.pods[0])
	w.waitReached(w.lab.Outside, w.nodePorts(svc), w.pods[0])
	node := w.nodePorts(svc)
	w.updateService("web", none)
	w.waitOutcome(w.lab.Outside, node, lab.Reset)
}

func testProxyName(w *testEnv) {
	const label = "service.kubernetes.io/service-proxy-name"
	w.run()
	w.setEndpoints("web", w.pods[0])
	foreign := w.createService(func(svc *corev1.Service) {
		svc.Name, svc.Labels = "foreign", map[string]string{label: "foo"}
	})
	w.setEndpoints("foreign", w.pods[0])
	svc := w.createService()
	w.waitReached(w.client, targets(svc, 80), w.pods[0])
	w.waitOutcome(w.client, targets(foreign, 80), lab.TimedOut)

	w.updateService("web", func(svc *corev1.Service) { svc.Labels = map[string]string{label: "foo"} })
	w.waitOutcome(w.client, targets(svc, 80), lab.TimedOut)
	w.updateService("web", func(svc *corev1.Service) { svc.Labels = nil })
	w.waitReached(w.client, targets(svc, 80), w.pods[0])
}

func testHeadlessLabel(w *testEnv) {
	w.run()
	svc := w.createService()
	w.setEndpoints("web", w.pods[0])
	w.waitReached(w.client, targets(svc, 80), w.pods[0])
	for _, s := range Slices("web", w.pods[:1]) {
		s.Labels[corev1.IsHeadlessService] = ""
		w.setSlice(s)
	}
	w.waitOutcome(w.client, targets(svc, 80), lab.Refused)
	w.setEndpoints("web", w.pods[0])
	w.waitReached(w.client, targets(svc, 80), w.pods[0])
}

func testHeadless(w *testEnv) {
	p := w.run()
	_, err := p.First(w.Context())
	w.must(err)
	w.setEndpoints("none", w.pods[0])
	w.createService(func(svc *corev1.Service) { svc.Name, svc.Spec.ClusterIP = "none", corev1.ClusterIPNone })
	svc := w.createService() // programmed after the headless one
	w.waitOutcome(w.client, targets(svc, 80), lab.Refused)
	if touched := w.reported(p)[1:]; len(touched) != 1 || touched[0].Services != 1 {
		w.Errorf("the headless Service was written too: %+v", touched)
	}
}

func testServiceKinds(w *testEnv) {
	w.run()
	seconds := int32(7200)
	sticky := w.createService(func(svc *corev1.Service) {
		svc.Name, svc.Spec.SessionAffinity = "sticky", corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds},
		}
	})
	w.setEndpoints("sticky", w.pods[:]...)
	w.eventually(func() error { return checkAnswered(w.client, targets(sticky, 80)) })
	for _, to := range targets(sticky, 80) {
		if n := len(lab.Spread(w.client.Repeat(30, lab.Probe{Protocol: lab.TCP, To: to}))); n != 1 {
			w.Errorf("%s: %d backends answered one client, want 1", to, n)
		}
	}

	local := corev1.ServiceInternalTrafficPolicyLocal
	near := w.createService(func(svc *corev1.Service) { svc.Name, svc.Spec.InternalTrafficPolicy = "near", &local })
	for _, s := range Slices("near", w.pods[:2]) {
		here, there := "node-a", "node-b"
		s.Endpoints[0].NodeName, s.Endpoints[1].NodeName = &here, &there
		w.setSlice(s)
	}
	w.waitReached(w.client, targets(near, 80), w.pods[0])

	single := corev1.IPFamilyPolicySingleStack
	six := w.createService(func(svc *corev1.Service) {
		svc.Name, svc.Spec.IPFamilyPolicy, svc.Spec.IPFamilies = "six", &single, []corev1.IPFamily{corev1.IPv6Protocol}
		svc.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	})
	for _, s := range Slices("six", w.pods[:2]) {
		udp := corev1.ProtocolUDP
		s.Ports[0].Protocol = &udp
		w.setSlice(s)
	}
	to := targets(six, 80)
	if len(to) != 1 || !to[0].Addr().Is6() {
		w.Fatalf("the API server assigned %v to an IPv6 Service", to)
	}
	w.eventually(func() error { return checkAnsweredBy(w.client, lab.UDP, to[0], w.pods[:2]) })

	outer := w.createService(func(svc *corev1.Service) {
		svc.Name, svc.Spec.ExternalIPs = "outer", []string{"203.0.113.90", "2001:db8:113::90"}
	})
	w.setEndpoints("outer", w.pods[2])
	w.waitReached(w.client, slices.Concat(targets(outer, 80), ports(80, outer.Spec.ExternalIPs...)), w.pods[2])
}

func testSeveralSlices(w *testEnv) {
	w.run()
	svc := w.createService()
	w.setEndpoints("web", w.pods[0])
	for _, s := range Slices("web", w.pods[1:2]) {
		s.Name += "-more"
		w.setSlice(s)
	}
	w.waitReached(w.client, targets(svc, 80), w.pods[:2]...)
	api := w.Client.DiscoveryV1().EndpointSlices(w.ns)
	for _, s := range Slices("web", nil) {
		w.must(api.Delete(w.Context(), s.Name, metav1.DeleteOptions{}))
	}
	w.waitReached(w.client, targets(svc, 80), w.pods[1])
}
