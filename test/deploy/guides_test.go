//go:build linux

package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// block is a block of commands in a guide.
type block struct {
	section string // heading
	text    string
}

// blocks returns the blocks of a guide that are marked sh.
func blocks(t *testing.T, guide string) []block {
	t.Helper()
	text, err := os.ReadFile(projectPath(guide))
	must(t, err)
	var out []block
	section, in := "", false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "```sh"):
			in, out = true, append(out, block{section: section})
		case strings.HasPrefix(line, "```"):
			in = false
		case in:
			out[len(out)-1].text += line
		case strings.HasPrefix(line, "## "):
			section = strings.TrimSpace(line[3:])
		}
	}
	return out
}

// shell runs the commands of a guide in a folder with the project's folder deploy, and with
// kubectl.
type shell struct {
	t   *testing.T
	dir string
	env []string
}

// newShell provides the commands on-node, which runs a command in the node's network namespace,
// and kubectl, whose exec does the same because there is no kubelet.
func newShell(t *testing.T, c *cluster, node *lab.Host, root string) shell {
	t.Helper()
	d := shell{t: t, dir: t.TempDir()}
	scripts := map[string]string{
		"on-node": `exec nsenter --net="$NODE_NETNS" "$@"`,
		"kubectl": `case " $* " in
*" exec "*) while [ "$1" != -- ]; do shift; done; shift; exec nsenter --net="$NODE_NETNS" "$IMAGE/usr/local/bin/$1" "${@:2}" ;;
esac
case " $* " in *" logs "*) exit ;; # only a kubelet has them
esac
exec "$KUBECTL" "$@"`,
	}
	for name, text := range scripts {
		must(t, os.WriteFile(filepath.Join(d.dir, name), []byte("#!/bin/bash\n"+text+"\n"), 0o755))
	}
	must(t, os.Symlink(projectPath("deploy"), filepath.Join(d.dir, "deploy")))
	d.env = append(os.Environ(), "PATH="+d.dir+":"+os.Getenv("PATH"), "KUBECONFIG="+c.kubeconfig,
		"KUBECTL="+tool("kubectl"), "NODE_NETNS="+node.NetNSPath(), "IMAGE="+root, "HOME="+d.dir)
	return d
}

// run runs a block unchanged.
func (d shell) run(b block) string {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), "bash", "-euo", "pipefail", "-c", b.text)
	cmd.Dir, cmd.Env = d.dir, d.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		d.t.Fatalf("under %q:\n%s\n%v:\n%s", b.section, b.text, err, out)
	}
	return string(out)
}

// testInstall follows the guide on nodes without a proxy.
func testInstall(t *testing.T, c *cluster, root string) {
	d := prepareNodes(t, c, root)
	startNodes(t, c, root, d.lab.NodeA)
	to := d.createService(t, "web", "10.180.1.3")
	sh := newShell(t, c, d.lab.NodeA, root)
	for _, b := range blocks(t, "docs/install.md") {
		if b.section == "Uninstall" {
			eventually(t, func() error { return d.checkReached(to, "10.180.1.3") })
		}
		var clients *lab.Steady
		if strings.Contains(b.text, "rollout restart") { // of mode userspace: the others end first
			clients = d.startConnections(t, to)
		}
		out := sh.run(b)
		if clients != nil {
			must(t, clients.End())
		}
		mode := cmp.Or(map[string]string{modeSection: "iptables", "Mode userspace": "userspace"}[b.section], "nftables")
		if strings.Contains(b.text, "sluice status") && (!strings.Contains(out, "healthy") || !strings.Contains(out, mode+" (")) {
			t.Errorf("sluice status prints\n%s\nwant healthy, and %s", out, mode)
		}
	}
	must(t, d.checkReached(to, "10.180.1.3")) // the rules stay
}

// prepareNodes deletes what other tests deployed, and creates nodes without pods.
func prepareNodes(t *testing.T, c *cluster, root string) *deployed {
	t.Helper()
	c.kubectl(t, "delete", "--ignore-not-found", "-k", projectPath("deploy/kubernetes/base"))
	c.kubectl(t, "-n", system, "delete", "--ignore-not-found", "configmap", "sluice-apiserver")
	l := lab.New(t, lab.Options{Timeout: time.Second})
	for node, addr := range map[*lab.Host]string{l.NodeA: "192.168.0.2", l.NodeB: "192.168.0.3"} {
		c.Forward(t, node)
		c.addNode(t, node.Name(), addr)
		c.kubectl(t, "label", "node", node.Name(), "kubernetes.io/os=linux")
	}
	return &deployed{cluster: c, lab: l, client: l.Pod(l.NodeA, "10.180.0.9"), root: root}
}

// modeSection is the section of the migration guide about mode iptables. Its first two blocks
// replace those of the section "Sluice, on no node yet"; the others switch the mode.
const modeSection = "Mode iptables"

// migration returns the blocks of the guide in the order for a mode.
func migration(t *testing.T, mode string) []block {
	t.Helper()
	var out, other []block
	for _, b := range blocks(t, "docs/migration.md") {
		if b.section == modeSection {
			other = append(other, b)
			continue
		}
		out = append(out, b)
	}
	if len(other) < 3 {
		t.Fatalf("section %q has %d blocks, want at least 3", modeSection, len(other))
	}
	if mode == "nftables" {
		return out
	}
	first := slices.IndexFunc(out, func(b block) bool { return b.section == "Sluice, on no node yet" })
	copy(out[first:first+2], other)
	back := slices.IndexFunc(out, func(b block) bool { return b.section == "Back" })
	return slices.Insert(out, back, other[2:]...)
}

// testMigration follows the guide there and back, with kube-proxy on the nodes
// and a client that connects all the time.
func testMigration(t *testing.T, c *cluster, root, mode string) {
	if _, err := os.Stat(kubeProxyPath()); err != nil {
		t.Fatalf("build kube-proxy with hack/test-assets.sh: %v", err)
	}
	d := prepareNodes(t, c, root)
	d.mode = mode
	text, err := os.ReadFile("testdata/kube-proxy.yaml")
	must(t, err)
	file := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "ADDRESS", c.address(t).Host)), 0o600))
	c.kubectl(t, "apply", "-f", file)
	to := d.createService(t, "web", "10.180.1.4")
	stop := startNodes(t, c, root, d.lab.NodeA, d.lab.NodeB)
	eventually(t, func() error { return d.checkReached(to, "10.180.1.4") })

	sh, clients := newShell(t, c, d.lab.NodeA, root), d.startConnections(t, to)
	for _, b := range migration(t, mode) {
		d.checkBlock(t, b, sh.run(b))
	}
	must(t, clients.End())
	eventually(t, func() error { return d.checkReached(to, "10.180.1.4") })
	if rules := d.lab.NodeA.MustRun("nft", "list", "tables"); strings.Contains(rules, "sluice") {
		t.Errorf("remaining on node A:\n%s", rules)
	}
	must(t, checkKubeProxyRules(d.lab.NodeA))
	stop() // before the service accounts that pods need are deleted
	c.kubectl(t, "delete", "-f", file)
}

// checkTakenOver returns an error unless Sluice has taken over a host: chains that only kube-proxy
// has are gone, and in mode iptables the shared ones exist.
func (d *deployed) checkTakenOver(host *lab.Host) error {
	if d.mode != "iptables" {
		if checkKubeProxyRules(host) == nil {
			return fmt.Errorf("kube-proxy's rules are still on %s", host.Name())
		}
		return nil
	}
	rules, err := host.Run("", iptablesBinary(host), "iptables-save")
	if err == nil && strings.Contains(rules, "KUBE-PROXY-CANARY") {
		err = fmt.Errorf("a chain that only kube-proxy has is still on %s", host.Name())
	}
	return errors.Join(err, checkKubeProxyRules(host))
}

// checkBlock verifies the result of a block.
func (d *deployed) checkBlock(t *testing.T, b block, out string) {
	t.Helper()
	switch {
	case b.section == "One node" && strings.Contains(b.text, "rollout"):
		eventually(t, func() error { // kube-proxy's rules are removed once Sluice's are complete
			return errors.Join(d.checkTakenOver(d.lab.NodeA), checkKubeProxyRules(d.lab.NodeB)) // node B stays unchanged
		})
	case b.section == "One node":
		if !strings.Contains(out, "healthy") || !strings.Contains(out, "web-") || !strings.Contains(out, d.mode+" (") {
			t.Errorf("the block prints\n%s", out)
		}
	case b.section == "Back" && strings.Contains(b.text, "curl"):
		must(t, checkKubeProxyRules(d.lab.NodeA))
		if d.mode == "nftables" && !d.hasTables(d.lab.NodeA) {
			t.Error("Sluice's rules were removed before kube-proxy's were complete")
		}
	case b.section == "Back" && strings.Contains(b.text, "rollout status daemonset/sluice-cleanup"):
		must(t, checkKubeProxyRules(d.lab.NodeA)) // the cleanup keeps them
	case b.section == "All nodes":
		eventually(t, func() error { return d.checkTakenOver(d.lab.NodeB) })
	case b.section == modeSection:
		d.checkMode(t, b)
	}
}

// checkMode verifies that the nodes have the rules of the mode to which a block switches.
func (d *deployed) checkMode(t *testing.T, b block) {
	t.Helper()
	for _, host := range []*lab.Host{d.lab.NodeA, d.lab.NodeB} {
		eventually(t, func() error {
			tables, chains := d.hasTables(host), checkKubeProxyRules(host) == nil
			switch {
			case strings.Contains(b.text, `\1 nftables/`) && (!tables || chains):
				return fmt.Errorf("switched to nftables, %s has its tables: %t, chains of iptables: %t", host.Name(), tables, chains)
			case strings.Contains(b.text, `\1 iptables/`) && strings.Contains(b.text, "restart") && (tables || !chains):
				return fmt.Errorf("switched to iptables, %s has tables of nftables: %t, chains: %t", host.Name(), tables, chains)
			}
			return nil
		})
	}
}

// hasTables reports whether a host has Sluice's tables of mode nftables.
func (d *deployed) hasTables(host *lab.Host) bool {
	return strings.Contains(host.MustRun("nft", "list", "tables"), "sluice")
}

// startConnections opens connections to a Service, and keeps one open.
func (d *deployed) startConnections(t *testing.T, to netip.AddrPort) *lab.Steady {
	t.Helper()
	return lab.StartSteady(t, 5*time.Millisecond, lab.Way{From: d.client, To: to})
}
