//go:build linux

package wine_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/wine"
)

// A NodePort is served at all addresses of the host, and source ranges refuse clients. After the daemon was killed,
// --cleanup removes the addresses of Services, once, and those that the host had stay.
func testPolicies(t *testing.T, p *wine.Prefix, sluice string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(file, []byte(policies), 0o600); err != nil {
		t.Fatal(err)
	}
	killed := p.Start(t.Output(), sluice, "--manifests", wine.Path(file),
		"--proxy-mode=userspace", "--nodeport-addresses=all")
	answers(t, "10.96.0.22", "10.96.0.23", "10.96.0.24", "10.96.0.33")
	for _, at := range []string{"192.0.2.10:30080", "127.0.0.1:30080"} {
		if err := ask(t, at); err != nil {
			t.Errorf("NodePort at %s: %v", at, err)
		}
	}
	if err := ask(t, "10.96.0.34:80"); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("a client outside of the source ranges: %v, want a reset", err)
	}
	if r := p.Run(sluice, "get", "addresses"); r.Code != 0 || !strings.Contains(r.Stdout, "0.0.0.0:30080") {
		t.Errorf("get addresses: %+v", r)
	}
	killed.Kill()
	hasAddresses(t, "10.96.0.22", "10.96.0.23", "10.96.0.24", "10.96.0.33", "10.96.0.34")
	for _, want := range []string{"4 addresses of Services", ""} {
		r := p.Run(sluice, "--cleanup", "--proxy-mode=userspace")
		if r.Code != 0 || !strings.Contains(r.Stdout+r.Stderr, want) ||
			want == "" && strings.Contains(r.Stdout+r.Stderr, "of Services") {
			t.Errorf("--cleanup: %+v, want status 0 and %q", r, want)
		}
		hasAddresses(t, "10.96.0.22")
	}
}

// ask connects to an address, sends a request and waits for the first byte of the answer.
func ask(t *testing.T, at string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

// policies are a Service with a NodePort at an address that the host has, and two load balancers: the source ranges
// of one have its own address, at which this host connects to it; the ranges of the other one do not.
const policies = `apiVersion: v1
kind: Service
metadata: {name: nodeport, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.22
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: nodeport, namespace: default, labels: {kubernetes.io/service-name: nodeport}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: ["192.0.2.10"]}]
---
apiVersion: v1
kind: Service
metadata: {name: open, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.23
  loadBalancerSourceRanges: ["10.96.0.0/16"]
  ports: [{port: 80, targetPort: 8080}]
status: {loadBalancer: {ingress: [{ip: 10.96.0.33}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: open, namespace: default, labels: {kubernetes.io/service-name: open}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: ["192.0.2.10"]}]
---
apiVersion: v1
kind: Service
metadata: {name: restricted, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.24
  loadBalancerSourceRanges: ["203.0.113.0/24"]
  ports: [{port: 80, targetPort: 8080}]
status: {loadBalancer: {ingress: [{ip: 10.96.0.34}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: restricted, namespace: default, labels: {kubernetes.io/service-name: restricted}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: ["192.0.2.10"]}]
`
