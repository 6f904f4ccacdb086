//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// block is a block of commands in a guide.
type block struct {
	section string // heading
	text    string
}

// blocks returns the blocks of a guide that are marked sh.
func blocks(t *testing.T, guide string) []block {
	t.Helper()
	text, err := os.ReadFile(absolute(guide))
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

// prepareShell provides the prerequisites of guides: kubectl, the folder deploy, and on-node, which runs a command on
// NODE, or node A.
func (c *testCluster) prepareShell(t *testing.T) {
	t.Helper()
	onNode := fmt.Sprintf("#!/bin/sh\nexec %q exec -dir=%q \"${NODE:-node-a}\" -- \"$@\"\n", c.executable(t), c.dir)
	must(t, os.WriteFile(filepath.Join(c.work, "on-node"), []byte(onNode), 0o755))
	must(t, os.Symlink(c.programs["kubectl"], filepath.Join(c.work, "kubectl")))
	must(t, os.Symlink(absolute("deploy"), filepath.Join(c.work, "deploy")))
}

// executable returns the path of this program.
func (c *testCluster) executable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	must(t, err)
	return path
}

// run runs a block unchanged, on the machine of the control plane: there the address in the kubeconfig is the one
// that nodes use.
func (c *testCluster) run(t *testing.T, b block) string {
	t.Helper()
	script := fmt.Sprintf("cd %q; export PATH=%q:$PATH KUBECONFIG=%q; %s", c.work, c.work, kubeconfigOf(admin), b.text)
	out, err := c.on(controlPlane, "bash", "-euo", "pipefail", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("under %q:\n%s\n%v:\n%s\n%s", b.section, b.text, err, out, c.describe("kube-system", "daemonset/sluice"))
	}
	return string(out)
}

// testInstall follows the guide. In each mode of it Sluice is restarted with traffic; in mode userspace its
// connections end.
func testInstall(t *testing.T, c *testCluster) {
	modes := map[string]string{"The manifests": "nftables", "Mode userspace": "userspace", "Mode iptables": "iptables"}
	for _, b := range blocks(t, "docs/install.md") {
		c.run(t, b)
		mode, known := modes[b.section]
		if !known {
			continue
		}
		c.checkMode(t, mode)
		if mode == "userspace" {
			c.kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/sluice")
			c.rollOut(t, "kube-system", "daemonset/sluice")
			c.startTraffic(t).end(t, allBackendsStay)
		} else {
			c.restart(t)
		}
		delete(modes, b.section)
	}
	if len(modes) > 0 {
		t.Errorf("the guide has no commands for %v", modes)
	}
}

// modeSection is the section of the migration guide about mode iptables. Its first two blocks replace the blocks of
// the section "Sluice, on no node yet"; the others change the mode.
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

// onEachNode repeats what the guide does on node A to go back: on node B, which has iptables-legacy and so another
// cleanup.
func onEachNode(list []block) []block {
	begin := slices.IndexFunc(list, func(b block) bool {
		return b.section == "Back" && strings.Contains(b.text, "label node node-a service-proxy-")
	})
	end := slices.IndexFunc(list, func(b block) bool {
		return strings.Contains(b.text, "label node node-a sluice-cleanup-")
	}) + 1
	other := strings.NewReplacer("node-a", "node-b", "deploy/kubernetes/cleanup\n", "deploy/kubernetes/cleanup-iptables\n")
	var again []block
	for _, b := range list[begin:end] {
		again = append(again, block{section: "Back, on node B", text: "export NODE=node-b\n" + other.Replace(b.text)})
	}
	return slices.Insert(list, end, again...)
}

// testMigration follows the guide from kube-proxy to Sluice and back, with traffic.
func testMigration(t *testing.T, c *testCluster, mode string) {
	c.kubectl(t, "apply", "-f", "testdata/kube-proxy.yaml")
	c.rollOut(t, "kube-system", "daemonset/kube-proxy")
	f := c.startTraffic(t)
	for _, b := range onEachNode(migration(t, mode)) {
		c.checkBlock(t, b, mode, c.run(t, b))
	}
	f.end(t, allBackendsStay)
	for _, node := range nodeNames() {
		eventually(t, func() error { return c.hasKubeProxyRules(node) })
		if c.hasTables(t, node) {
			t.Errorf("tables of Sluice are left on %s", node)
		}
	}
	c.kubectl(t, "delete", "-n", "kube-system", "daemonset/kube-proxy",
		"configmap/kube-proxy", "serviceaccount/kube-proxy")
}

// hasKubeProxyRules returns an error unless a node has chains of Services as kube-proxy writes them, in its variant
// of iptables.
func (c *testCluster) hasKubeProxyRules(node string) error {
	out, err := c.on(node, "/run/iptables/iptables-save").CombinedOutput()
	if err == nil && !strings.Contains(string(out), "-A KUBE-SVC-") {
		err = errors.New("no chains of Services")
	}
	if err != nil {
		return fmt.Errorf("the rules of %s: %w\n%s", node, err, out)
	}
	return nil
}

// checkTakenOver returns an error unless Sluice has taken over a node: chains that only kube-proxy has are gone, and
// in mode iptables the shared ones are there.
func (c *testCluster) checkTakenOver(node, mode string) error {
	if mode != "iptables" {
		if c.hasKubeProxyRules(node) == nil {
			return fmt.Errorf("kube-proxy's rules are still on %s", node)
		}
		return nil
	}
	out, err := c.on(node, "/run/iptables/iptables-save").CombinedOutput()
	if err == nil && strings.Contains(string(out), "KUBE-PROXY-CANARY") {
		err = fmt.Errorf("a chain that only kube-proxy has is still on %s", node)
	}
	return errors.Join(err, c.hasKubeProxyRules(node))
}

func (c *testCluster) hasTables(t testing.TB, node string) bool {
	t.Helper()
	out, err := c.on(node, "nft", "list", "tables").CombinedOutput()
	if err != nil {
		t.Fatalf("list the tables of %s: %v\n%s", node, err, out)
	}
	return strings.Contains(string(out), " sluice\n")
}

// checkBlock verifies the result of a block.
func (c *testCluster) checkBlock(t *testing.T, b block, mode, out string) {
	t.Helper()
	switch {
	case b.section == "One node" && strings.Contains(b.text, "rollout"):
		eventually(t, func() error { // kube-proxy's rules are removed once Sluice's are complete
			return errors.Join(c.checkTakenOver("node-a", mode), c.hasKubeProxyRules("node-b")) // node B stays unchanged
		})
	case b.section == "One node":
		if !strings.Contains(out, "healthy") || !strings.Contains(out, "web ") || !strings.Contains(out, mode+" (") {
			t.Errorf("the block prints\n%s", out)
		}
	case b.section == "Back" && strings.Contains(b.text, "curl"):
		must(t, c.hasKubeProxyRules("node-a"))
		if mode == "nftables" && !c.hasTables(t, "node-a") {
			t.Error("Sluice's rules were removed before kube-proxy's were complete")
		}
	case b.section == "Back" && strings.Contains(b.text, "rollout status daemonset/sluice-cleanup"):
		must(t, c.hasKubeProxyRules("node-a")) // the cleanup keeps them
	case b.section == "All nodes":
		eventually(t, func() error { return c.checkTakenOver("node-b", mode) })
	case b.section == modeSection:
		c.checkChanged(t, b)
	}
}

// checkChanged verifies that the nodes have the rules of the mode to which a block switches.
func (c *testCluster) checkChanged(t *testing.T, b block) {
	t.Helper()
	for _, node := range nodeNames() {
		eventually(t, func() error {
			tables, chains := c.hasTables(t, node), c.hasKubeProxyRules(node) == nil
			switch {
			case strings.Contains(b.text, `\1 nftables/`) && (!tables || chains):
				return fmt.Errorf("switched to nftables, %s has its tables: %t, chains of iptables: %t", node, tables, chains)
			case strings.Contains(b.text, `\1 iptables/`) && strings.Contains(b.text, "restart") && (tables || !chains):
				return fmt.Errorf("switched to iptables, %s has tables of nftables: %t, chains: %t", node, tables, chains)
			}
			return nil
		})
	}
}
