//go:build linux

package deploy

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

const webYAML = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.180.1.1]}]
`

// socketsNode is a node with a cgroup and a bpffs of its own, a pod that is a backend, and the image.
type socketsNode struct {
	lab  *lab.Lab
	root string
	bpf  string
	dir  string // with the Service
}

func newSocketsNode(t *testing.T) *socketsNode {
	t.Helper()
	kerneltest.NeedPrograms(t)
	n := &socketsNode{
		lab: lab.New(t, lab.Options{Cgroups: true}), root: imageFor(t, "nftables"), bpf: lab.BPFFS(t), dir: t.TempDir(),
	}
	n.lab.Pod(n.lab.NodeA, "10.180.1.1").Serve(lab.TCP, 80)
	must(t, os.WriteFile(filepath.Join(n.dir, "web.yaml"), []byte(webYAML), 0o600))
	return n
}

// container returns the confinement of the DaemonSet of mode ebpf. The cgroup is not the root, for which the machine
// has other processes, so the command line names it.
func (n *socketsNode) container(t *testing.T, args ...string) confinement {
	t.Helper()
	spec := daemonSetFor(t, "ebpf").Spec.Template.Spec
	c := spec.Containers[0].DeepCopy()
	c.Env = nil
	c.VolumeMounts = slices.Clone(c.VolumeMounts[:3])
	c.Command = append([]string{
		"sluice", "--manifests=/etc/sluice", "--oom-score-adj=-997", "--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		"--proxy-mode=ebpf", "--cgroup-root=/host/sys/fs/cgroup",
	}, args...)
	k := kubelet{
		root: n.root, node: n.lab.NodeA, dir: t.TempDir(), extraMounts: map[string]string{"/etc/sluice": n.dir},
		hostFolders: map[string]string{"/sys/fs/bpf": n.bpf, "/sys/fs/cgroup": n.lab.NodeA.Cgroup()},
	}
	return k.confinement(t, &spec, c)
}

// problems returns the lines of the log about features that do not work.
func problems(log string) (list []string) {
	for _, text := range []string{"Sockets are not balanced", "Pods are served packet by packet", "have no effect"} {
		if strings.Contains(log, text) {
			list = append(list, text)
		}
	}
	return list
}

// With the rights and mounts of the DaemonSet, sockets are balanced, even after it has ended, and a cleanup with the
// mount of its overlay leaves nothing.
func TestSocketsAreBalancedAsDeployed(t *testing.T) {
	n := newSocketsNode(t)
	p := n.container(t).start(t, n.lab.NodeA)
	p.waitForLog("msg=Synced")
	if list := problems(p.log.String()); len(list) > 0 {
		t.Errorf("%q:\n%s", list, p.log)
	}
	must(t, p.stop())
	n.lab.NodeA.MustRun("nft", "flush", "ruleset")
	eventually(t, func() error {
		if r := n.lab.NodeA.Dial(lab.TCP, netip.MustParseAddrPort("10.96.0.10:80")); r.Outcome != lab.Answered {
			return fmt.Errorf("without rules: %s", r)
		}
		return nil
	})
	clean := n.container(t)
	clean.Capabilities = []int{unix.CAP_NET_ADMIN}
	delete(clean.Writable, "/host/sys/fs/cgroup")
	clean.Argv = []string{"sluice", "--cleanup"}
	p = clean.start(t, n.lab.NodeA)
	must(t, p.wait())
	if !strings.Contains(p.log.String(), "10 programs of sockets") {
		t.Errorf("the cleanup says:\n%s", p.log)
	}
	if _, err := os.Stat(filepath.Join(n.bpf, "sluice")); !os.IsNotExist(err) {
		t.Errorf("after the cleanup: %v", err)
	}
}

// Without one of the rights something does not work, and the log says so. If another mode serves, so does the status.
func TestSocketsNeedEachRight(t *testing.T) {
	n := newSocketsNode(t)
	for name, c := range map[string]struct {
		remove func(*confinement)
		want   string
	}{
		"SYS_ADMIN":  {without(unix.CAP_SYS_ADMIN), "Sockets are not balanced"},
		"SYS_PTRACE": {without(unix.CAP_SYS_PTRACE), "Pods are served packet by packet"},
		"BPF in place of SYS_ADMIN": {func(c *confinement) {
			without(unix.CAP_SYS_ADMIN)(c)
			c.Capabilities = append(c.Capabilities, unix.CAP_BPF)
		}, "Pods are served packet by packet"},
		"bpffs":   {func(c *confinement) { delete(c.Writable, "/sys/fs/bpf") }, "Sockets are not balanced"},
		"cgroups": {func(c *confinement) { delete(c.Writable, "/host/sys/fs/cgroup") }, "Sockets are not balanced"},
	} {
		t.Run(name, func(t *testing.T) {
			conf := n.container(t)
			c.remove(&conf)
			conf.Filter = runtimeDefault(t, conf.Capabilities)
			p := conf.start(t, n.lab.NodeA)
			p.waitForLog("msg=Synced")
			if list := problems(p.log.String()); !slices.Contains(list, c.want) {
				t.Errorf("the log is\n%s\nwant %q", p.log, c.want)
			}
			exec := conf // kubectl exec
			exec.Argv = []string{"sluice", "status"}
			status := exec.start(t, n.lab.NodeA)
			must(t, status.wait())
			first, _, _ := strings.Cut(status.log.String(), "\n")
			falls := strings.Contains(first, "mode nftables serves in place of mode ebpf")
			if falls != (c.want == "Sockets are not balanced") {
				t.Errorf("the status begins with %q", first)
			}
			must(t, p.stop())
		})
	}
}

func without(capability int) func(*confinement) {
	return func(c *confinement) {
		c.Capabilities = slices.DeleteFunc(slices.Clone(c.Capabilities), func(n int) bool { return n == capability })
	}
}
