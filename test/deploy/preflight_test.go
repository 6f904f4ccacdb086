//go:build linux

package deploy

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// The container of the overlay preflight tests the node with the rights of the base, finds the rules of another
// proxy, and changes nothing. With fewer rights it names the missing one.
func TestPreflightAsDeployed(t *testing.T) {
	text, err := os.ReadFile(projectPath("deploy/kubernetes/preflight/daemonset.yaml"))
	must(t, err)
	pod := readDaemonSet(t, text).Spec.Template.Spec
	l := lab.New(t, lab.Options{})
	k := kubelet{
		root: imageFor(t, "nftables"), node: l.NodeA, dir: t.TempDir(), extraMounts: map[string]string{empty: t.TempDir()},
		maps: map[string]map[string]string{"sluice-apiserver": {"host": "192.0.2.1", "port": "6443"}},
	}
	container := pod.InitContainers[0].DeepCopy()
	container.Command = append(container.Command, "--manifests="+empty) // without a cluster
	c := k.confinement(t, &pod, container)
	if len(c.Capabilities) != 1 || c.Capabilities[0] != unix.CAP_NET_ADMIN || c.GainNew || c.Privileged || c.HostPID {
		t.Fatalf("the DaemonSet grants %v", c)
	}
	l.NodeA.MustRun("nft", "add", "table", "ip", "kube-proxy")
	before := l.NodeA.MustRun("sh", "-c", "nft list ruleset; sysctl -a --pattern ^net.ipv4")
	check := func(want ...string) {
		t.Helper()
		p := c.start(t, l.NodeA)
		if err := p.wait(); err != nil {
			t.Errorf("it ends with %v", err)
		}
		got := regexp.MustCompile(" +").ReplaceAllString(p.log.String(), " ") // columns are as wide as their words
		for _, line := range want {
			if !strings.Contains(got, line) {
				t.Errorf("no %q in\n%s", line, got)
			}
		}
	}
	check(
		"supports mode nftables (the configuration names it)\n",
		"ok capabilities this process has the capabilities that the mode needs: CAP_NET_ADMIN\n",
		"ok other proxies rules remain: nftables: table ip kube-proxy with 0 chains; Sluice removes them\n",
		"ok conntrack ", // the base leaves its settings alone
	)
	if after := l.NodeA.MustRun("sh", "-c", "nft list ruleset; sysctl -a --pattern ^net.ipv4"); after != before {
		t.Errorf("after it\n%s\nbefore\n%s", after, before)
	}
	c.Capabilities = nil
	check("warning kernel ", "not tested: missing privilege: programming nf_tables needs the capability CAP_NET_ADMIN",
		"warning capabilities this process lacks CAP_NET_ADMIN")
}
