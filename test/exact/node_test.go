//go:build linux

package exact

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

const timeout = time.Minute

// Addresses and ports of the Services web and twin, which have the same backends.
const (
	web4, twin4, web6 = "172.30.0.80", "172.30.0.81", "fd00:172:30::80"
	external          = "203.0.113.80"
	port              = 80 // of TCP, and of UDP
	dns               = 53 // of UDP
	nodePort          = 30080
)

// node runs Sluice in a mode, beside the clients and their backends.
type node struct {
	*testing.T
	mode    string
	lab     *lab.Lab
	clients map[string]*lab.Host
	names   map[netip.Addr]string // of hosts and Services
	dir     string                // the manifests
	bpf     string                // the programs
	config  string

	// What Sluice should have in the kernel.
	now      string // the mode
	services int
	versions int // of the manifests
}

func newNode(t *testing.T, mode string) *node {
	l := lab.New(t, lab.Options{Cgroups: true})
	n := &node{
		T: t, mode: mode, lab: l, dir: t.TempDir(), bpf: filepath.Join(lab.BPFFS(t), "sluice"),
		names: map[netip.Addr]string{},
	}
	n.config = filepath.Join(t.TempDir(), "config.yaml")
	n.clients = map[string]*lab.Host{"pod": n.pod("pod", l.NodeA, "10.180.0.9"), "node": l.NodeA}
	for _, a := range l.NodeA.Addrs() {
		n.names[a] = "node"
	}
	for name, a := range map[string]string{"web": web4, "web6": web6, "twin": twin4, "external": external} {
		n.names[netip.MustParseAddr(a)] = name
	}
	for name, h := range map[string]*lab.Host{
		"pod-a": n.pod("pod-a", l.NodeA, "10.180.1.1"), "pod-b": n.pod("pod-b", l.NodeB, "10.180.1.2"),
	} {
		n.answer(name, h)
	}
	n.configure(mode)
	n.start()
	n.serve("pod-a")
	n.synced()
	return n
}

func (n *node) pod(name string, on *lab.Host, addr string) *lab.Host {
	a := netip.MustParseAddr(addr)
	n.names[a], n.names[lab.Analog(a)] = name, name
	return n.lab.Pod(on, a.String(), lab.Analog(a).String())
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// start starts Sluice, and waits until it serves.
func (n *node) start() {
	n.Helper()
	sluice, err := harness.Program()
	n.must(err)
	cmd := exec.Command(sluice, "--manifests="+n.dir, "--hostname-override=node-a",
		"--cluster-cidr=10.180.0.0/16,fd00:10:180::/48", "--reload-jitter=0",
		"--config="+n.config, "--bpf-dir="+n.bpf, "--cgroup-root="+n.lab.NodeA.Cgroup())
	p, err := harness.Start(n.lab.NodeA, cmd)
	n.must(err)
	n.Cleanup(func() {
		if n.Failed() {
			n.Logf("mode %s:\n%s", n.mode, p.Log)
		}
	})
}

// configure changes the mode. Sluice may be running.
func (n *node) configure(mode string) {
	n.Helper()
	n.now = mode
	n.must(harness.Replace(n.config,
		[]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: "+mode+"\n")))
}

// serve writes the Services with some backends.
func (n *node) serve(pods ...string) {
	n.Helper()
	addrs := map[string][]string{}
	for a, name := range n.names {
		for _, pod := range pods {
			if name == pod && a.Is4() {
				addrs["IPv4"] = append(addrs["IPv4"], a.String())
			} else if name == pod {
				addrs["IPv6"] = append(addrs["IPv6"], a.String())
			}
		}
	}
	ports := []harness.Object{
		{"name": "tcp", "port": port, "nodePort": nodePort},
		{"name": "udp", "protocol": "UDP", "port": port, "nodePort": nodePort},
		{"name": "dns", "protocol": "UDP", "port": dns, "nodePort": nodePort + 1},
	}
	var slicePorts []harness.Object
	for _, p := range ports {
		slicePorts = append(slicePorts, harness.Object{"name": p["name"], "protocol": p["protocol"], "port": p["port"]})
	}
	objects := []harness.Object{
		harness.Service("web", harness.Object{
			"type": "NodePort", "clusterIP": web4, "clusterIPs": []string{web4, web6}, "ipFamilies": []string{"IPv4", "IPv6"},
			"ipFamilyPolicy": "RequireDualStack", "externalIPs": []string{external}, "ports": ports,
		}),
		harness.Service("twin", harness.Object{"clusterIP": twin4, "ports": slicePorts}),
	}
	for _, service := range []string{"web", "twin"} {
		for family, list := range addrs {
			objects = append(objects, harness.EndpointSlice(service, family, slicePorts, list...))
		}
	}
	n.write(objects, 2)
}

func (n *node) remove() { n.write(nil, 0) }

// write writes objects, of which some are Services. Services without a purpose tell one version from the others.
func (n *node) write(objects []harness.Object, services int) {
	n.Helper()
	n.versions++
	for i := range n.versions {
		spec := harness.Object{"clusterIP": fmt.Sprint("172.30.1.", i+1), "ports": []harness.Object{{"port": 1}}}
		objects = append(objects, harness.Service(fmt.Sprint("version-", i+1), spec))
	}
	n.services = services + n.versions
	n.must(harness.Replace(filepath.Join(n.dir, "objects.json"), harness.Manifest(objects)))
}

// synced waits until all is in the kernel, and programs decide for the pod.
func (n *node) synced() {
	n.Helper()
	harness.Eventually(n, timeout, func() error {
		s, err := n.status()
		behind := s.Health.State == health.Starting || s.Pending > 0 || s.Busy != "" || !s.Lag.Since.IsZero()
		if err == nil && (behind || s.Mode.Name != n.now || s.Counts.Services != n.services) {
			err = fmt.Errorf("%d Services (want %d), %d pending, mode %s (want %s), %s", s.Counts.Services, n.services,
				s.Pending, s.Mode.Name, n.now, s.Health.State)
		}
		return err
	})
	if n.now == "ebpf" {
		harness.Eventually(n, timeout, func() error { return harness.Known(n.bpf, n.clients["pod"]) })
	}
}

func (n *node) status() (inspect.Status, error) {
	var s inspect.Status
	err := admin.Dial(admin.Options{NetNS: n.lab.NodeA.NetNSFD()}).Get(context.Background(), "/status", nil, &s)
	return s, err
}

// called returns the name of an address.
func (n *node) called(a netip.Addr) string {
	if name, known := n.names[a.Unmap()]; known {
		return name
	}
	return strings.ReplaceAll(a.String(), "|", " ")
}
