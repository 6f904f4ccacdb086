//go:build linux

package deploy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/test/lab"
)

// empty is a folder of the image with nothing in it.
const empty = "/var/run/secrets/kubernetes.io/serviceaccount"

const localnet = "/proc/sys/net/ipv4/conf/all/route_localnet"

const established = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"

// What the DaemonSet's container may not set its privileged init container does,
// if that is enabled; then there is nothing left to complain about. The size of
// the table, which only the host's own namespace can set, is not tried.
func TestInitContainerSetsKernelParameters(t *testing.T) {
	made := sources(template(t, "--set=sysctls.enabled=true,sysctls.conntrack.maxPerCore=0,sysctls.conntrack.tcpEstablishedTimeout=7h"))
	var config corev1.ConfigMap
	must(t, yaml.UnmarshalStrict([]byte(made["configmap.yaml"]), &config))
	pod := readDaemonSet(t, []byte(made["daemonset.yaml"])).Spec.Template.Spec
	l := lab.New(t, lab.Options{})
	k := kubelet{
		root: image(t), node: l.NodeA, dir: t.TempDir(), more: map[string]string{empty: t.TempDir()},
		maps: map[string]map[string]string{"sluice": config.Data, "sluice-apiserver": {"host": "192.0.2.1", "port": "6443"}},
	}
	manifests := func(c *corev1.Container) confinement {
		c = c.DeepCopy()
		c.Command = append(c.Command, "--manifests="+empty) // no cluster is needed for this
		return k.confinement(t, &pod, c)
	}
	main := manifests(&pod.Containers[0])

	before := main.start(t, l.NodeA)
	before.says("nf_conntrack_tcp_timeout_established=25200")
	must(t, before.stop())

	init := manifests(&pod.InitContainers[0])
	if p := init.start(t, l.NodeA); p.wait() != nil {
		t.Fatalf("the init container fails:\n%s", p.log)
	}
	if got := strings.TrimSpace(l.NodeA.MustRun("cat", established)); got != "25200" {
		t.Errorf("connections are remembered for %s s, want 25200", got)
	}
	after := main.start(t, l.NodeA)
	after.says("msg=Synced")
	if strings.Contains(after.log.String(), "nf_conntrack") {
		t.Errorf("something is left to set:\n%s", after.log)
	}
	must(t, after.stop())
}

// In mode iptables the init container lets NodePorts be reached on 127.0.0.1, and
// is asked to by the chart only if there is one.
func TestInitContainerLetsLoopbackBeRouted(t *testing.T) {
	made := sources(template(t, "--set=config.mode=iptables,sysctls.enabled=true,sysctls.conntrack.maxPerCore=0"))
	var config corev1.ConfigMap
	must(t, yaml.UnmarshalStrict([]byte(made["configmap.yaml"]), &config))
	pod := readDaemonSet(t, []byte(made["daemonset.yaml"])).Spec.Template.Spec
	l := lab.New(t, lab.Options{})
	k := kubelet{
		root: imageFor(t, "iptables"), node: l.NodeA, dir: t.TempDir(), more: map[string]string{empty: t.TempDir()},
		maps: map[string]map[string]string{"sluice": config.Data, "sluice-apiserver": {"host": "192.0.2.1", "port": "6443"}},
	}
	started := func(c *corev1.Container) *process {
		c = c.DeepCopy()
		c.Command = append(c.Command, "--manifests="+empty)
		return k.confinement(t, &pod, c).start(t, l.NodeA)
	}
	if p := started(&pod.InitContainers[0]); p.wait() != nil {
		t.Fatalf("the init container fails:\n%s", p.log)
	}
	if got := strings.TrimSpace(l.NodeA.MustRun("cat", localnet)); got != "1" {
		t.Errorf("route_localnet is %s, want 1", got)
	}
	p := started(&pod.Containers[0])
	p.says("msg=Synced")
	if strings.Contains(p.log.String(), "Loopback addresses") {
		t.Errorf("something is left to set:\n%s", p.log)
	}
	must(t, p.stop())
}
