//go:build linux

package wine_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/wine"
)

// kernelspaceTest is the program for Windows in mode kernelspace with an API server and a fake of HNS.
type kernelspaceTest struct {
	*testing.T
	*apiserver.Cluster
	windows *wine.Prefix
	fake    *hnstest.Fake
	sluice  string
	args    []string
	vip     netip.AddrPort // of the Service web

	refused atomic.Pointer[string] // the beginning of writes that HNS does not accept; nil: it accepts all
}

// testKernelspace runs the program with one HNS and one API server: each story leaves nothing of the program.
func testKernelspace(t *testing.T, p *wine.Prefix) {
	c := apiserver.Start(t)
	kubeconfig, err := c.Kubeconfig("")
	if err != nil {
		t.Fatal(err)
	}
	k := &kernelspaceTest{T: t, Cluster: c, windows: p, fake: hnstest.New(hns.Network{Name: "pods", Type: hns.L2Bridge})}
	k.fake.Refuse = k.refuse
	k.addEndpoints("container", "10.180.0.9")
	k.grantEvents()
	if err := c.PutNode(t.Context(), "node-a", nil, "192.168.0.2"); err != nil {
		t.Fatal(err)
	}
	k.windows.ServeHNS(k.fake)
	k.sluice = k.windows.Build(module + "cmd/sluice")
	k.args = []string{"--kubeconfig=" + wine.Path(kubeconfig), "--network-name=pods", "--hostname-override=node-a"}
	k.vip = k.createService("web")
	for _, story := range []struct {
		name string
		run  func()
	}{
		{"crash", k.crash},
		{"service of Windows", k.service},
		{"network", k.networks},
		{"load balancer", k.loadBalancer},
		{"refusal", k.refusal},
		{"overlay", k.overlay},
	} {
		t.Run(story.name, func(t *testing.T) {
			k.T = t
			story.run()
		})
	}
}

// crash: the program serves Services after a start and after changes. After a crash it writes only differences. A
// clean-up removes all its objects, and none of others.
func (k *kernelspaceTest) crash() {
	k.setEndpoints("web", "10.180.1.7", "10.180.1.8")
	d := k.start()
	k.has(k.vip, "10.180.1.7", "10.180.1.8")
	if r := k.windows.Run(k.sluice, "status"); !strings.Contains(r.Stdout, "kernelspace") {
		k.Errorf("status: %+v", r)
	}
	k.setEndpoints("web", "10.180.1.7", "10.180.1.8", "10.180.0.9")
	k.has(k.vip, "10.180.1.7", "10.180.1.8", "10.180.0.9")
	if r := k.windows.Run(k.sluice, "diff"); r.Code != 0 {
		k.Errorf("diff: %+v", r)
	}
	r := k.windows.Run(k.sluice, "explain", "10.180.0.9", k.vip.String())
	if r.Code != 0 || !strings.Contains(r.Stdout, "10.180.1.8:8080") {
		k.Errorf("explain: %+v", r)
	}
	k.serves("http://127.0.0.1:10256/livez", "")
	k.serves("http://127.0.0.1:10249/metrics", "kubeproxy_sync_proxy_rules_last_timestamp_seconds")
	k.serves("http://127.0.0.1:10249/proxyMode", "kernelspace")

	d.Kill()
	before := k.fake.Written()
	k.setEndpoints("web", "10.180.1.8") // one that is gone was on another node
	d = k.start()
	k.has(k.vip, "10.180.1.8")
	d.Kill()
	written := k.fake.Written()[len(before):]
	if len(written) != 2 || !strings.HasPrefix(written[0], "modify "+k.vip.Addr().String()+" ") ||
		written[1] != "delete endpoint [10.180.1.7]" {
		k.Errorf("after a crash it writes\n%s\nwant the change of one load balancer, and the deletion of the endpoint",
			strings.Join(written, "\n"))
	}
	k.cleanup("container")
}

// start starts the program until the end of the story.
func (k *kernelspaceTest) start(args ...string) *wine.Process {
	k.Helper()
	d := k.windows.Start(k.Output(), k.sluice, append(append([]string{}, k.args...), args...)...)
	k.Cleanup(d.Kill)
	return d
}

// cleanup verifies that a clean-up leaves no load balancer, and the endpoints of others by their names.
func (k *kernelspaceTest) cleanup(want ...string) {
	k.Helper()
	if r := k.windows.Run(k.sluice, append([]string{"--cleanup"}, k.args...)...); r.Code != 0 {
		k.Errorf("--cleanup: %+v", r)
	}
	list, err := k.fake.LoadBalancers(k.Context())
	endpoints, endpointsErr := k.fake.Endpoints(k.Context())
	var names []string
	for _, e := range endpoints {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	if err != nil || endpointsErr != nil || len(list) > 0 || !slices.Equal(names, want) {
		k.Errorf("after --cleanup: %+v, %+v, %v, %v, want the endpoints %q", list, endpoints, err, endpointsErr, want)
	}
}

// service runs the program as a service of Windows.
func (k *kernelspaceTest) service() {
	k.Helper()
	log := filepath.Join(k.TempDir(), "log.txt")
	install(k.T, k.windows,
		wine.Path(k.sluice)+" --windows-service --log-file "+wine.Path(log)+" "+strings.Join(k.args, " "))
	control(k.T, k.windows, "start")
	k.has(k.vip, "10.180.1.8")
	control(k.T, k.windows, "stop")
	if text := state(k.T, k.windows, "STOPPED"); !strings.Contains(text, "WIN32_EXIT_CODE    : 0 ") {
		k.Errorf("after a graceful end: %s", text)
	}
	k.has(k.vip, "10.180.1.8") // it stays
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "the rules stay") {
		k.Errorf("the log has %s, %v", text, err)
	}
}

// serves verifies that a server of the program answers with a text.
func (k *kernelspaceTest) serves(url, text string) {
	k.Helper()
	if code, body := k.get(url); code != http.StatusOK || !strings.Contains(body, text) {
		k.Errorf("%s: status %d, want %q in\n%.2000s", url, code, text, body)
	}
}

// get returns the answer of a server of the program. The code is 0 if it does not answer.
func (k *kernelspaceTest) get(url string) (code int, body string) {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		k.Fatal(err)
	}
	r.Close = true // the next request may be for another process
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }() // it was only read
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

// createService creates a Service with port 80 and returns its address.
func (k *kernelspaceTest) createService(name string) netip.AddrPort {
	k.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	svc, err := k.Client.CoreV1().Services("default").Create(k.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		k.Fatal(err)
	}
	return netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), 80)
}

// setEndpoints makes port 8080 of addresses the endpoints of a Service.
func (k *kernelspaceTest) setEndpoints(service string, addrs ...string) {
	k.Helper()
	port, ready := int32(8080), true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	for _, a := range addrs {
		node := "node-b"
		if strings.HasPrefix(a, "10.180.0.") {
			node = "node-a"
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: &node,
		})
	}
	if err := k.PutSlice(k.Context(), "default", slice); err != nil {
		k.Fatal(err)
	}
}

// has waits until HNS has a load balancer with the backends, and remote endpoints for backends of other nodes only.
func (k *kernelspaceTest) has(vip netip.AddrPort, backends ...string) {
	k.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = k.check(vip, backends); err == nil {
			return
		}
	}
	k.Fatal(err)
}

func (k *kernelspaceTest) check(vip netip.AddrPort, backends []string) error {
	ctx := context.Background()
	endpoints, err := k.fake.Endpoints(ctx)
	if err != nil {
		return err
	}
	list, err := k.fake.LoadBalancers(ctx)
	if err != nil {
		return err
	}
	if err := remoteOnly(endpoints, list); err != nil {
		return err
	}
	addrs := map[string]string{}
	for _, e := range endpoints {
		addrs[e.ID] = e.Addrs[0].String()
	}
	for _, l := range list {
		if netip.AddrPortFrom(l.VIP, l.Port) != vip {
			continue
		}
		var got []string
		for _, id := range l.Endpoints {
			got = append(got, addrs[id])
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(backends))
		if !slices.Equal(got, want) || l.Target != 8080 {
			return fmt.Errorf("%s has %v, want %v", l, got, want)
		}
		return nil
	}
	return fmt.Errorf("no load balancer for %s in %v", vip, list)
}

// remoteOnly verifies that the remote endpoints are the backends of load balancers that are on other nodes.
func remoteOnly(endpoints []hns.Endpoint, balancers []hns.LoadBalancer) error {
	used := map[string]bool{}
	for _, l := range balancers {
		for _, id := range l.Endpoints {
			used[id] = true
		}
	}
	for _, e := range endpoints {
		here := strings.HasPrefix(e.Addrs[0].String(), "10.180.0.")
		if e.Remote == here || e.Remote && (!used[e.ID] || e.MAC != hns.MAC(e.Addrs[0])) {
			return fmt.Errorf("endpoint %+v: on this node %v, in a load balancer %v", e, here, used[e.ID])
		}
	}
	return nil
}
