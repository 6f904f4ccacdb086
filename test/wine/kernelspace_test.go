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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/kernel/hns/hnstest"
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
}

// The program serves Services of an API server by HNS: after a start and after changes. After a crash it writes
// only what differs. A clean-up leaves nothing of it, and what others have.
func TestKernelspace(t *testing.T) {
	c := apiserver.Start(t)
	kubeconfig, err := c.Kubeconfig("")
	if err != nil {
		t.Fatal(err)
	}
	fake := hnstest.New(hns.Network{Name: "pods", Type: hns.L2Bridge})
	n, err := fake.Network(t.Context(), "pods")
	if err != nil {
		t.Fatal(err)
	}
	foreign := hns.Endpoint{Network: n.ID, Name: "container", Addrs: []netip.Addr{netip.MustParseAddr("10.180.0.9")}}
	if _, err := fake.CreateEndpoint(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	p := wine.New(t)
	p.ServeHNS(fake)
	k := &kernelspaceTest{t, c, p, fake, p.Build(module + "cmd/sluice"), []string{
		"--kubeconfig=" + wine.Path(kubeconfig), "--network-name=pods", "--hostname-override=node-a",
	}}
	vip := k.createService("web")
	k.setEndpoints("web", "10.180.1.7", "10.180.1.8")

	d := p.Start(t.Output(), k.sluice, k.args...)
	k.has(vip, "10.180.1.7", "10.180.1.8")
	if r := p.Run(k.sluice, "status"); !strings.Contains(r.Stdout, "kernelspace") {
		t.Errorf("status: %+v", r)
	}
	k.setEndpoints("web", "10.180.1.8", "10.180.0.9")
	k.has(vip, "10.180.1.8", "10.180.0.9")
	if r := p.Run(k.sluice, "diff"); r.Code != 0 {
		t.Errorf("diff: %+v", r)
	}
	if r := p.Run(k.sluice, "explain", "10.180.0.9", vip.String()); r.Code != 0 || !strings.Contains(r.Stdout, "10.180.1.8:8080") {
		t.Errorf("explain: %+v", r)
	}

	k.serves("http://127.0.0.1:10256/livez", "")
	k.serves("http://127.0.0.1:10249/metrics", "kubeproxy_sync_proxy_rules_last_timestamp_seconds")
	k.serves("http://127.0.0.1:10249/proxyMode", "kernelspace")

	d.Kill()
	before := k.writes()
	k.setEndpoints("web", "10.180.1.8")
	d = p.Start(t.Output(), k.sluice, k.args...)
	k.has(vip, "10.180.1.8")
	written := k.writes()[len(before):]
	if len(written) != 1 || !strings.HasPrefix(written[0], "modify 172.30.") && !strings.HasPrefix(written[0], "modify "+vip.Addr().String()) {
		t.Errorf("after a crash it writes\n%s\nwant the change of one load balancer", strings.Join(written, "\n"))
	}
	d.Kill()
	if r := p.Run(k.sluice, append([]string{"--cleanup"}, k.args...)...); r.Code != 0 {
		t.Errorf("--cleanup: %+v", r)
	}
	list, err := fake.LoadBalancers(t.Context())
	endpoints, endpointsErr := fake.Endpoints(t.Context())
	if err != nil || endpointsErr != nil || len(list) > 0 || len(endpoints) != 1 || endpoints[0].Name != "container" {
		t.Errorf("after --cleanup: %+v, %+v, %v, %v", list, endpoints, err, endpointsErr)
	}
	t.Run("service of Windows", func(t *testing.T) {
		k.T = t
		k.service(vip)
	})
}

// service runs the program as a service of Windows.
func (k *kernelspaceTest) service(vip netip.AddrPort) {
	k.Helper()
	log := filepath.Join(k.TempDir(), "log.txt")
	install(k.T, k.windows, wine.Path(k.sluice)+" --windows-service --log-file "+wine.Path(log)+" "+strings.Join(k.args, " "))
	control(k.T, k.windows, "start")
	k.has(vip, "10.180.1.8")
	control(k.T, k.windows, "stop")
	if text := state(k.T, k.windows, "STOPPED"); !strings.Contains(text, "WIN32_EXIT_CODE    : 0 ") {
		k.Errorf("after a graceful end: %s", text)
	}
	k.has(vip, "10.180.1.8") // it stays
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "the rules stay") {
		k.Errorf("the log has %s, %v", text, err)
	}
}

// serves verifies that a server of the program answers with a text.
func (k *kernelspaceTest) serves(url, text string) {
	k.Helper()
	r, err := http.NewRequestWithContext(k.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		k.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		k.Error(err)
		return
	}
	defer func() { _ = answer.Body.Close() }() // it was only read
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), text) {
		k.Errorf("%s: %s, %v, want %q in\n%.2000s", url, answer.Status, err, text, body)
	}
}

func (k *kernelspaceTest) writes() []string { return k.fake.Written() }

// createService creates a Service with port 80 and returns its address.
func (k *kernelspaceTest) createService(name string) netip.AddrPort {
	k.Helper()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
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
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
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

// has waits until HNS has a load balancer with the backends, and remote endpoints for those of other nodes only.
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
	addrs := map[string]string{}
	for _, e := range endpoints {
		addrs[e.ID] = e.Addrs[0].String()
	}
	list, err := k.fake.LoadBalancers(ctx)
	if err != nil {
		return err
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
