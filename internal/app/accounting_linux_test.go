package app

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// nodePortService has a NodePort, and an endpoint that does not exist.
const nodePortService = `
apiVersion: v1
kind: Service
metadata: {name: door, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.81
  ports: [{name: http, port: 80, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: door-1, namespace: default, labels: {kubernetes.io/service-name: door}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.9], conditions: {ready: true}}]
`

// In mode iptables, connections to a NodePort at 127.0.0.1 are counted in a metric. A
// comparison finds no difference because of the counters.
func TestConnectionsAtLoopbackAreCounted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, quiet+"mode: iptables\n")
	r, netns := daemonWith(t, path, "--manifests="+manifests(t, nodePortService))
	r.sync()
	wantMetric := func(want string) {
		t.Helper()
		for _, line := range []string{"kubeproxy_iptables_ct_state_invalid_dropped_packets_total 0\n", want} {
			if code, body := get(t, netns, "127.0.0.1:10249/metrics"); code != 200 || !strings.Contains(body, "\n"+line) {
				t.Errorf("code %d, and the metrics lack: %s", code, line)
			}
		}
	}
	wantMetric("kubeproxy_iptables_localhost_nodeports_accepted_packets_total 0\n")
	kerneltest.Do(t, netns, func() error {
		if c, err := net.DialTimeout("tcp", "127.0.0.1:30080", 100*time.Millisecond); err == nil {
			_ = c.Close() // the result does not matter
		}
		return nil
	})
	wantMetric("kubeproxy_iptables_localhost_nodeports_accepted_packets_total 1\n")
	var d inspect.Difference
	if err := admin.Dial(admin.Options{NetNS: netns}).Get(t.Context(), "/diff", nil, &d); err != nil || d.Steps != 0 {
		t.Errorf("difference %+v (%v), want none", d, err)
	}
}
