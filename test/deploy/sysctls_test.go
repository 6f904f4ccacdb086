//go:build linux

package deploy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/test/lab"
)

// empty is an empty folder in the image.
const empty = "/var/run/secrets/kubernetes.io/serviceaccount"

const localnet = "/proc/sys/net/ipv4/conf/all/route_localnet"

const established = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"

// The privileged init container, if enabled, sets the kernel parameters that the container of
// the DaemonSet cannot set, and the container then logs no warning. The conntrack table size,
// which can only be set in the initial network namespace, is not tested.
func TestInitContainerSetsKernelParameters(t *testing.T) {
	made := sources(template(t,
		"--set=sysctls.enabled=true,sysctls.conntrack.maxPerCore=0,sysctls.conntrack.tcpEstablishedTimeout=7h"))
	var config corev1.ConfigMap
	must(t, yaml.UnmarshalStrict([]byte(made["configmap.yaml"]), &config))
	pod := readDaemonSet(t, []byte(made["daemonset.yaml"])).Spec.Template.Spec
	l := lab.New(t, lab.Options{})
	k := kubelet{
		root: imageFor(t, "nftables"), node: l.NodeA, dir: t.TempDir(), extraMounts: map[string]string{empty: t.TempDir()},
		maps: map[string]map[string]string{"sluice": config.Data, "sluice-apiserver": {"host": "192.0.2.1", "port": "6443"}},
	}
	manifests := func(c *corev1.Container) confinement {
		c = c.DeepCopy()
		c.Command = append(c.Command, "--manifests="+empty) // without a cluster
		return k.confinement(t, &pod, c)
	}
	main := manifests(&pod.Containers[0])

	before := main.start(t, l.NodeA)
	before.waitForLog("nf_conntrack_tcp_timeout_established=25200")
	must(t, before.stop())

	init := manifests(&pod.InitContainers[0])
	if p := init.start(t, l.NodeA); p.wait() != nil {
		t.Fatalf("the init container fails:\n%s", p.log)
	}
	if got := strings.TrimSpace(l.NodeA.MustRun("cat", established)); got != "25200" {
		t.Errorf("the timeout of established connections is %s s, want 25200", got)
	}
	after := main.start(t, l.NodeA)
	after.waitForLog("msg=Synced")
	if strings.Contains(after.log.String(), "nf_conntrack") {
		t.Errorf("the container warns of kernel parameters:\n%s", after.log)
	}
	must(t, after.stop())
}

// In mode iptables the init container enables NodePorts on 127.0.0.1. The chart enables them in
// the configuration only together with the init container.
func TestInitContainerSetsRouteLocalnet(t *testing.T) {
	made := sources(template(t, "--set=config.mode=iptables,sysctls.enabled=true,sysctls.conntrack.maxPerCore=0"))
	var config corev1.ConfigMap
	must(t, yaml.UnmarshalStrict([]byte(made["configmap.yaml"]), &config))
	pod := readDaemonSet(t, []byte(made["daemonset.yaml"])).Spec.Template.Spec
	l := lab.New(t, lab.Options{})
	k := kubelet{
		root: imageFor(t, "iptables"), node: l.NodeA, dir: t.TempDir(), extraMounts: map[string]string{empty: t.TempDir()},
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
	p.waitForLog("msg=Synced")
	if strings.Contains(p.log.String(), "Loopback addresses") {
		t.Errorf("the container warns of kernel parameters:\n%s", p.log)
	}
	must(t, p.stop())
}
