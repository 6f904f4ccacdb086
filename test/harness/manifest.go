//go:build linux

package harness

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Object is a Kubernetes object in its JSON form.
type Object = map[string]any

// Service returns a Service in namespace default, with this spec.
func Service(name string, spec Object) Object {
	return Object{
		"apiVersion": "v1", "kind": "Service", "spec": spec,
		"metadata": Object{"name": name, "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
	}
}

// EndpointSlice returns an EndpointSlice of a Service. The family is IPv4 or IPv6.
func EndpointSlice(service, family string, ports []Object, addresses ...string) Object {
	endpoints := make([]Object, 0, len(addresses))
	for _, a := range addresses {
		endpoints = append(endpoints, Object{"addresses": []string{a}})
	}
	return Object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
		"metadata": Object{
			"name": service + "-" + strings.ToLower(family), "namespace": "default",
			"labels": Object{"kubernetes.io/service-name": service},
		},
		"ports": ports, "endpoints": endpoints,
	}
}

// Manifest returns objects as the text of a manifest.
func Manifest(objects []Object) []byte {
	var text []byte
	for _, o := range objects {
		b, err := json.Marshal(o)
		if err != nil {
			panic(err) // a mistake in a test
		}
		text = append(append(append(text, "---\n"...), b...), '\n')
	}
	return text
}

// Replace replaces a file atomically. The temporary file beside it has a name that Sluice ignores.
func Replace(path string, text []byte) error {
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(temp, text, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(temp, path)
}

// Pods adds a client to node A and up to three backends, on nodes A, B and A, which serve TCP
// port 80. All have addresses in both IP families.
func Pods(l *lab.Lab, backends int) (client *lab.Host, pods []*lab.Host) {
	client = l.Pod(l.NodeA, "10.180.0.9", "fd00:10:180::9")
	for i, node := range []*lab.Host{l.NodeA, l.NodeB, l.NodeA}[:backends] {
		a := PodAddr(i)
		pod := l.Pod(node, a.String(), lab.Analog(a).String())
		pod.Serve(lab.TCP, 80)
		pods = append(pods, pod)
	}
	return client, pods
}

// PodAddr returns the IPv4 address of a backend. Its IPv6 address is lab.Analog of it.
func PodAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 180, 1, byte(i + 1)}) }
