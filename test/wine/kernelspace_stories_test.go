//go:build linux

package wine_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

const healthz = "http://127.0.0.1:10256/healthz"

// networks: the network is created after the start, and is deleted and created again later.
func (k *kernelspaceTest) networks() {
	const waits = `HNS network \"pods\" does not exist: waiting for the CNI plugin to create it`
	remove := func() { // with everything in it
		k.fake.DeleteNetwork("pods")
		if list, err := k.fake.LoadBalancers(k.Context()); err != nil || len(list) > 0 {
			k.Fatal(list, err)
		}
	}
	remove()
	k.start()
	for range 2 {
		k.until(healthz, http.StatusServiceUnavailable, waits)
		k.serves("http://127.0.0.1:10256/livez", "")
		if r := k.windows.Run(k.sluice, "status"); !strings.Contains(r.Stdout, "waiting for the CNI plugin to create it") {
			k.Errorf("status: %+v", r)
		}
		k.fake.AddNetwork(hns.Network{Name: "pods", Type: hns.L2Bridge})
		k.has(k.vip, "10.180.1.8")
		k.until(healthz, http.StatusOK, "")
		remove()
	}
	k.fake.AddNetwork(hns.Network{Name: "pods", Type: hns.L2Bridge})
	k.addEndpoints("container", "10.180.0.9")
	k.has(k.vip, "10.180.1.8")
}

// loadBalancer: each address of a Service is a load balancer, and clients inside of the cluster are like those
// outside. Its health checks lead to the endpoint of this node. --init-only writes nothing.
func (k *kernelspaceTest) loadBalancer() {
	k.addEndpoints("cbr0", "10.180.0.1")
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "gate"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
		HealthCheckNodePort: 32000,
		SessionAffinity:     corev1.ServiceAffinityClientIP, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}},
	}}
	svc, err := k.Client.CoreV1().Services("default").Create(k.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		k.Fatal(err)
	}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.9"}}
	if svc, err = k.Client.CoreV1().Services("default").UpdateStatus(k.Context(), svc,
		metav1.UpdateOptions{}); err != nil {
		k.Fatal(err)
	}
	k.setEndpoints("gate", "10.180.0.9", "10.180.1.9")
	before := k.fake.Written()
	if r := k.windows.Run(k.sluice, append([]string{"--init-only"}, k.args...)...); r.Code != 0 {
		k.Errorf("--init-only: %+v", r)
	}
	if written := k.fake.Written()[len(before):]; len(written) > 0 {
		k.Errorf("--init-only writes %q", written)
	}
	k.start("--forward-healthcheck-vip")
	clusterIP := svc.Spec.ClusterIP
	k.has(netip.AddrPortFrom(netip.MustParseAddr(clusterIP), 80), "10.180.0.9", "10.180.1.9")
	balancer := func(vip, ports string, f hns.Flags, to string) string {
		return fmt.Sprintf("%s protocol 6 port %s, source invalid IP, %+v to %s", vip, ports, f, to)
	}
	k.hasBalancers([]string{clusterIP, "198.51.100.9", "invalid IP"},
		balancer("198.51.100.9", "32000 -> 32000", hns.Flags{}, "10.180.0.1"),
		balancer("198.51.100.9", "80 -> 8080", hns.Flags{DSR: true, External: true, Affinity: true}, "10.180.0.9"),
		balancer("invalid IP", "30080 -> 8080", hns.Flags{DSR: true, External: true, LocalRouted: true, Affinity: true},
			"10.180.0.9"),
		balancer(clusterIP, "80 -> 8080", hns.Flags{Affinity: true}, "10.180.0.9 10.180.1.9"),
	)
	r := k.windows.Run(k.sluice, "get", "services")
	if r.Code != 0 || !strings.Contains(r.Stdout, "198.51.100.9") || !strings.Contains(r.Stdout, "30080") {
		k.Errorf("get services: %+v", r)
	}
	for _, client := range []string{"10.180.1.9", "203.0.113.9"} {
		r := k.windows.Run(k.sluice, "explain", client, "198.51.100.9:80")
		for _, text := range []string{
			"balanced over 1 backend", "1/1 10.180.0.9:8080", "HNS uses direct server return here",
			"as long as HNS remembers it",
		} {
			if r.Code != 0 || !strings.Contains(r.Stdout, text) {
				k.Errorf("explain %s: want %q in %+v", client, text, r)
			}
		}
	}
	if err := k.Client.CoreV1().Services("default").Delete(k.Context(), "gate", metav1.DeleteOptions{}); err != nil {
		k.Fatal(err)
	}
	k.hasBalancers([]string{clusterIP, "198.51.100.9", "invalid IP"})
	k.has(k.vip, "10.180.1.8")
}

// refusal: a load balancer that HNS does not accept costs its Service, with an Event and a metric. It is served as
// soon as HNS accepts it.
func (k *kernelspaceTest) refusal() {
	k.start()
	k.has(k.vip, "10.180.1.8")
	vip := k.createService("refused")
	beginning := "create " + vip.Addr().String() + " "
	k.refused.Store(&beginning)
	k.setEndpoints("refused", "10.180.1.11")
	k.until("http://127.0.0.1:10249/metrics", http.StatusOK,
		`kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total{error="port_already_exists",ip_family="IPv4",`+
			`lb_type="clusterip"} `)
	k.setEndpoints("web", "10.180.1.7")
	web := k.vip.Addr().String()
	k.hasBalancers([]string{web},
		fmt.Sprintf("%s protocol 6 port 80 -> 8080, source invalid IP, %+v to 10.180.1.7", web, hns.Flags{}))
	r := k.windows.Run(k.sluice, "get", "services")
	if r.Code != 0 || !strings.Contains(r.Stdout, "HCN_E_PORT_ALREADY_EXISTS") {
		k.Errorf("get services: %+v", r)
	}
	k.hasEvent("refused", "HCN_E_PORT_ALREADY_EXISTS")
	k.refused.Store(nil)
	k.has(vip, "10.180.1.11")
}

// overlay: in an overlay network the program creates the endpoint of the source VIP, and remote endpoints know
// their node.
func (k *kernelspaceTest) overlay() {
	k.cleanup("cbr0", "container")
	// The program looks for the MAC address of the node.
	ip(k.T, "link", "add", "eth0", "type", "veth", "peer", "name", "wire")
	ip(k.T, "address", "add", "192.168.0.2/24", "dev", "eth0")
	ip(k.T, "link", "set", "eth0", "up")
	k.fake.AddNetwork(hns.Network{Name: "vxlan0", Type: hns.Overlay, Remote: []hns.RemoteSubnet{
		{Prefix: netip.MustParsePrefix("10.180.1.0/24"), Provider: netip.MustParseAddr("192.168.0.3")},
	}})
	args := []string{"--network-name=vxlan0", "--source-vip=10.180.2.1", "--bind-address=192.168.0.2"}
	k.start(args...)
	vip := k.vip.Addr().String()
	k.hasBalancers([]string{vip},
		fmt.Sprintf("%s protocol 6 port 80 -> 8080, source 10.180.2.1, %+v to 10.180.1.7", vip, hns.Flags{}))
	list, err := k.fake.Endpoints(k.Context())
	if err != nil {
		k.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range list {
		if !e.Remote {
			e.MAC = "" // the CNI or HNS chooses it
		}
		got[e.Addrs[0].String()] = fmt.Sprintf("%s, MAC %s, on %s, remote %v", e.Name, e.MAC, e.Provider, e.Remote)
	}
	for addr, want := range map[string]string{
		"10.180.1.7": ", MAC 02-11-0A-B4-01-07, on 192.168.0.3, remote true",
		"10.180.2.1": "sluice-source-vip, MAC , on invalid IP, remote false",
	} {
		if got[addr] != want {
			k.Errorf("endpoint %s: %s, want %s", addr, got[addr], want)
		}
	}
}

// addEndpoints adds endpoints of this node that belong to others.
func (k *kernelspaceTest) addEndpoints(name string, addrs ...string) {
	k.Helper()
	n, err := k.fake.Network(k.Context(), "pods")
	if err != nil {
		k.Fatal(err)
	}
	for _, a := range addrs {
		if _, err := k.fake.CreateEndpoint(k.Context(),
			hns.Endpoint{Network: n.ID, Name: name, Addrs: []netip.Addr{netip.MustParseAddr(a)}}); err != nil {
			k.Fatal(err)
		}
	}
}

// hasBalancers waits until the load balancers of addresses are those wanted.
func (k *kernelspaceTest) hasBalancers(vips []string, want ...string) {
	k.Helper()
	slices.Sort(want)
	got := k.balancersOf(vips)
	for end := time.Now().Add(patience); !slices.Equal(got, want) && time.Now().Before(end); got = k.balancersOf(vips) {
		time.Sleep(50 * time.Millisecond)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		k.Fatal(diff)
	}
}

// balancersOf returns the load balancers of addresses with their backends, sorted.
func (k *kernelspaceTest) balancersOf(vips []string) (lines []string) {
	k.Helper()
	list, err := k.fake.LoadBalancers(k.Context())
	endpoints, endpointsErr := k.fake.Endpoints(k.Context())
	if err != nil || endpointsErr != nil {
		k.Fatal(err, endpointsErr)
	}
	for _, l := range list {
		var to []string
		for _, e := range endpoints {
			if slices.Contains(l.Endpoints, e.ID) {
				to = append(to, e.Addrs[0].String())
			}
		}
		slices.Sort(to)
		if slices.Contains(vips, l.VIP.String()) {
			lines = append(lines, l.String()+" to "+strings.Join(to, " "))
		}
	}
	slices.Sort(lines)
	return lines
}

// refuse is the Refuse of the fake.
func (k *kernelspaceTest) refuse(write string) error {
	if beginning := k.refused.Load(); beginning != nil && strings.HasPrefix(write, *beginning) {
		return hns.ErrPortExists
	}
	return nil
}

// until waits until a server of the program answers with a status and a text.
func (k *kernelspaceTest) until(url string, status int, text string) {
	k.Helper()
	var code int
	var body string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if code, body = k.get(url); code == status && strings.Contains(body, text) {
			return
		}
	}
	k.Fatalf("%s: status %d, want %d and %q in\n%.3000s", url, code, status, text, body)
}

// grantEvents gives the program the right to record Events, as kube-proxy has it.
func (k *kernelspaceTest) grantEvents() {
	k.Helper()
	_, err := k.Client.RbacV1().ClusterRoleBindings().Create(k.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "events"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}},
	}, metav1.CreateOptions{})
	if err != nil {
		k.Fatal(err)
	}
}

// hasEvent waits for a warning about a Service whose note has a text.
func (k *kernelspaceTest) hasEvent(service, text string) {
	k.Helper()
	var seen []string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		list, err := k.Client.EventsV1().Events("default").List(k.Context(), metav1.ListOptions{})
		if err != nil {
			k.Fatal(err)
		}
		seen = nil
		for _, e := range list.Items {
			if e.Regarding.Name == service && e.Type == corev1.EventTypeWarning && strings.Contains(e.Note, text) {
				return
			}
			seen = append(seen, e.Regarding.Name+": "+e.Note)
		}
	}
	k.Fatalf("no Event of %s with %q in\n%s", service, text, strings.Join(seen, "\n"))
}
