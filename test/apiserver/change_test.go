//go:build linux

package apiserver

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/test/lab"
)

func testChanges(w *world) {
	w.run()
	svc := w.create()
	to := targets(svc, 80)
	if len(to) != 2 {
		w.Fatalf("the API server gave %v, not an address of each family", to)
	}
	w.ends(w.client, to, lab.Refused)

	w.back("web", w.pods[0])
	w.reaches(w.client, to, w.pods[0])
	w.back("web", w.pods[:]...)
	w.reaches(w.client, to, w.pods[:]...)
	w.back("web", w.pods[1:]...)
	w.reaches(w.client, to, w.pods[1:]...)

	svc = w.update("web", func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 8080 })
	w.reaches(w.client, targets(svc, 8080), w.pods[1:]...)
	w.ends(w.client, to, lab.Refused)

	w.back("web")
	w.ends(w.client, targets(svc, 8080), lab.Refused)
	w.back("web", w.pods[0])
	w.reaches(w.client, targets(svc, 8080), w.pods[0])

	w.remove("web")
	w.ends(w.client, targets(svc, 8080), lab.TimedOut) // of a known range, and nobody's

	svc = w.create()
	w.reaches(w.client, targets(svc, 80), w.pods[0])
}

func testTypes(w *world) {
	w.run("--nodeport-addresses=primary")
	w.back("web", w.pods[0])
	svc := w.create()
	cluster := targets(svc, 80)
	w.reaches(w.client, cluster, w.pods[0])

	svc = w.update("web", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeNodePort })
	node := w.nodePorts(svc)
	w.reaches(w.lab.Outside, node, w.pods[0])

	w.update("web", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.LoadBalancerSourceRanges = []string{"203.0.113.0/25", "2001:db8:113::/121"}
	})
	vips := ports(80, "203.0.113.77", "2001:db8:113::77")
	w.setVIPs("web", corev1.LoadBalancerIPModeVIP)
	w.reaches(w.client, cluster, w.pods[0])
	w.reaches(w.lab.Outside, node, w.pods[0])
	w.reaches(w.lab.Outside, vips, w.pods[0])
	w.ends(w.lab.Blocked, vips, lab.TimedOut)

	// A load balancer that ends connections itself: not ours any more, and the
	// lab has none.
	w.setVIPs("web", corev1.LoadBalancerIPModeProxy)
	w.ends(w.client, vips, lab.TimedOut)
	w.reaches(w.client, cluster, w.pods[0])

	w.update("web", func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeClusterIP, nil
		svc.Spec.Ports[0].NodePort = 0
	})
	w.ends(w.lab.Outside, node, lab.Reset)
	w.reaches(w.client, cluster, w.pods[0])
}

// setVIPs does what a cloud does.
func (w *world) setVIPs(name string, mode corev1.LoadBalancerIPMode) {
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

func testExternalName(w *world) {
	w.run()
	w.back("web", w.pods[0])
	none := func(svc *corev1.Service) {
		svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
	}
	full := func(kind corev1.ServiceType) func(*corev1.Service) {
		both := corev1.IPFamilyPolicyPreferDualStack
		return func(svc *corev1.Service) {
			svc.Spec = corev1.ServiceSpec{Type: kind, IPFamilyPolicy: &both, Ports: []corev1.ServicePort{{Port: 80}}}
		}
	}
	w.create(none)
	svc := w.update("web", full(corev1.ServiceTypeClusterIP))
	w.reaches(w.client, targets(svc, 80), w.pods[0])

	old := targets(svc, 80)
	w.update("web", none)
	w.ends(w.client, old, lab.TimedOut)

	svc = w.update("web", full(corev1.ServiceTypeNodePort))
	w.reaches(w.client, targets(svc, 80), w.pods[0])
	w.reaches(w.lab.Outside, w.nodePorts(svc), w.pods[0])
	node := w.nodePorts(svc)
	w.update("web", none)
	w.ends(w.lab.Outside, node, lab.Reset)
}

func testProxyName(w *world) {
	const label = "service.kubernetes.io/service-proxy-name"
	w.run()
	w.back("web", w.pods[0])
	foreign := w.create(func(svc *corev1.Service) {
		svc.Name, svc.Labels = "foreign", map[string]string{label: "foo"}
	})
	w.back("foreign", w.pods[0])
	svc := w.create()
	w.reaches(w.client, targets(svc, 80), w.pods[0])
	w.ends(w.client, targets(foreign, 80), lab.TimedOut)

	w.update("web", func(svc *corev1.Service) { svc.Labels = map[string]string{label: "foo"} })
	w.ends(w.client, targets(svc, 80), lab.TimedOut)
	w.update("web", func(svc *corev1.Service) { svc.Labels = nil })
	w.reaches(w.client, targets(svc, 80), w.pods[0])
}

func testHeadlessLabel(w *world) {
	w.run()
	svc := w.create()
	w.back("web", w.pods[0])
	w.reaches(w.client, targets(svc, 80), w.pods[0])
	for _, s := range Slices("web", w.pods[:1]) {
		s.Labels[corev1.IsHeadlessService] = ""
		w.setSlice(s)
	}
	w.ends(w.client, targets(svc, 80), lab.Refused)
	w.back("web", w.pods[0])
	w.reaches(w.client, targets(svc, 80), w.pods[0])
}

func testHeadless(w *world) {
	p := w.run()
	_, err := p.First(w.Context())
	w.must(err)
	w.back("none", w.pods[0])
	w.create(func(svc *corev1.Service) { svc.Name, svc.Spec.ClusterIP = "none", corev1.ClusterIPNone })
	svc := w.create() // programmed after it
	w.ends(w.client, targets(svc, 80), lab.Refused)
	if touched := p.Syncs()[1:]; len(touched) != 1 || touched[0].Services != 1 {
		w.Errorf("the headless Service was written too: %+v", touched)
	}
}

func testKinds(w *world) {
	w.run()
	seconds := int32(7200)
	sticky := w.create(func(svc *corev1.Service) {
		svc.Name, svc.Spec.SessionAffinity = "sticky", corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	})
	w.back("sticky", w.pods[:]...)
	w.eventually(func() error { return answered(w.client, targets(sticky, 80)) })
	for _, to := range targets(sticky, 80) {
		if n := len(lab.Spread(w.client.Repeat(30, lab.Probe{Protocol: lab.TCP, To: to}))); n != 1 {
			w.Errorf("%s: %d backends answered one client, want 1", to, n)
		}
	}

	local := corev1.ServiceInternalTrafficPolicyLocal
	near := w.create(func(svc *corev1.Service) { svc.Name, svc.Spec.InternalTrafficPolicy = "near", &local })
	for _, s := range Slices("near", w.pods[:2]) {
		here, there := "node-a", "node-b"
		s.Endpoints[0].NodeName, s.Endpoints[1].NodeName = &here, &there
		w.setSlice(s)
	}
	w.reaches(w.client, targets(near, 80), w.pods[0])

	single := corev1.IPFamilyPolicySingleStack
	six := w.create(func(svc *corev1.Service) {
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
		w.Fatalf("the API server gave %v to a Service of IPv6 alone", to)
	}
	w.eventually(func() error { return only(w.client, lab.UDP, to[0], w.pods[:2]) })

	outer := w.create(func(svc *corev1.Service) {
		svc.Name, svc.Spec.ExternalIPs = "outer", []string{"203.0.113.90", "2001:db8:113::90"}
	})
	w.back("outer", w.pods[2])
	w.reaches(w.client, slices.Concat(targets(outer, 80), ports(80, outer.Spec.ExternalIPs...)), w.pods[2])
}

func testEverySliceKeeps(w *world) {
	w.run()
	svc := w.create()
	w.back("web", w.pods[0])
	for _, s := range Slices("web", w.pods[1:2]) {
		s.Name += "-more"
		w.setSlice(s)
	}
	w.reaches(w.client, targets(svc, 80), w.pods[:2]...)
	api := w.Client.DiscoveryV1().EndpointSlices(w.ns)
	for _, s := range Slices("web", nil) {
		w.must(api.Delete(w.Context(), s.Name, metav1.DeleteOptions{}))
	}
	w.reaches(w.client, targets(svc, 80), w.pods[1])
}
