//go:build linux

package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// block is a block of commands in a guide.
type block struct {
	section string // the heading it is under
	text    string
}

// blocks are those of a guide that are marked sh.
func blocks(t *testing.T, guide string) []block {
	t.Helper()
	text, err := os.ReadFile(project(guide))
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

// desk is where a person sits who follows a guide: a folder with the project's
// deploy in it, and kubectl.
type desk struct {
	t   *testing.T
	dir string
	env []string
}

// newDesk brings kubectl, which reaches into pods through the node's namespace,
// and on-node. No kubelet is there to do the first.
func newDesk(t *testing.T, c *cluster, node *lab.Host, root string) desk {
	t.Helper()
	d := desk{t: t, dir: t.TempDir()}
	scripts := map[string]string{
		"on-node": `exec nsenter --net="$NODE_NETNS" "$@"`,
		"kubectl": `case " $* " in
*" exec "*) while [ "$1" != -- ]; do shift; done; shift; exec nsenter --net="$NODE_NETNS" "$IMAGE/usr/local/bin/$1" "${@:2}" ;;
esac
exec "$KUBECTL" "$@"`,
	}
	for name, text := range scripts {
		must(t, os.WriteFile(filepath.Join(d.dir, name), []byte("#!/bin/bash\n"+text+"\n"), 0o755))
	}
	must(t, os.Symlink(project("deploy"), filepath.Join(d.dir, "deploy")))
	d.env = append(os.Environ(), "PATH="+d.dir+":"+os.Getenv("PATH"), "KUBECONFIG="+c.kubeconfig,
		"KUBECTL="+tool("kubectl"), "NODE_NETNS="+node.NetNSPath(), "IMAGE="+root, "HOME="+d.dir)
	return d
}

// do runs a block as it is written.
func (d desk) do(b block) string {
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
	d := furnish(t, c, root)
	startNodes(t, c, root, d.lab.NodeA)
	to := d.service(t, "web", "10.180.1.3")
	desk := newDesk(t, c, d.lab.NodeA, root)
	for _, b := range blocks(t, "docs/install.md") {
		if b.section == "Uninstall" {
			eventually(t, func() error { return d.reaches(to, "10.180.1.3") })
		}
		out := desk.do(b)
		mode := "nftables"
		if b.section == modeSection {
			mode = "iptables"
		}
		if strings.Contains(b.text, "sluice status") && (!strings.Contains(out, "healthy") || !strings.Contains(out, mode+" (")) {
			t.Errorf("sluice status says\n%s\nwant healthy, and %s", out, mode)
		}
	}
	must(t, d.reaches(to, "10.180.1.3")) // the rules stay
}

// furnish takes away what other tests deployed, and makes nodes that nothing
// runs on.
func furnish(t *testing.T, c *cluster, root string) *deployed {
	t.Helper()
	c.kubectl(t, "delete", "--ignore-not-found", "-k", project("deploy/kubernetes/base"))
	c.kubectl(t, "-n", system, "delete", "--ignore-not-found", "configmap", "sluice-apiserver")
	l := lab.New(t, lab.Options{Timeout: time.Second})
	for node, addr := range map[*lab.Host]string{l.NodeA: "192.168.0.2", l.NodeB: "192.168.0.3"} {
		c.Forward(t, node)
		c.addNode(t, node.Name(), addr)
		c.kubectl(t, "label", "node", node.Name(), "kubernetes.io/os=linux")
	}
	return &deployed{cluster: c, lab: l, client: l.Pod(l.NodeA, "10.180.0.9"), root: root}
}

// modeSection is what in the guide to migration is for mode iptables: blocks that
// take the place of the first two of the section about no node yet, and then
// those that switch the mode.
const modeSection = "Mode iptables"

// migration are the blocks of the guide in the order for a mode.
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
		t.Fatalf("under %q there are %d blocks", modeSection, len(other))
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
		t.Fatalf("hack/test-assets.sh builds it: %v", err)
	}
	d := furnish(t, c, root)
	d.mode = mode
	text, err := os.ReadFile("testdata/kube-proxy.yaml")
	must(t, err)
	file := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "ADDRESS", c.address(t).Host)), 0o600))
	c.kubectl(t, "apply", "-f", file)
	to := d.service(t, "web", "10.180.1.4")
	stop := startNodes(t, c, root, d.lab.NodeA, d.lab.NodeB)
	eventually(t, func() error { return d.reaches(to, "10.180.1.4") })

	desk, visits := newDesk(t, c, d.lab.NodeA, root), d.visit(to, "10.180.1.4")
	for _, b := range migration(t, mode) {
		d.look(t, b, desk.do(b))
	}
	visits.end(t)
	eventually(t, func() error { return d.reaches(to, "10.180.1.4") })
	if rules := d.lab.NodeA.MustRun("nft", "list", "tables"); strings.Contains(rules, "sluice") {
		t.Errorf("left behind on node A:\n%s", rules)
	}
	must(t, programmed(d.lab.NodeA))
	stop() // or a pod is started without the account that goes first
	c.kubectl(t, "delete", "-f", file)
}

// taken says whether a host is Sluice's: what kube-proxy's rules alone have is
// gone, and in mode iptables the others are there.
func (d *deployed) taken(host *lab.Host) error {
	if d.mode != "iptables" {
		if programmed(host) == nil {
			return fmt.Errorf("kube-proxy's rules are still on %s", host.Name())
		}
		return nil
	}
	rules, err := host.Run("", multi(host), "iptables-save")
	if err == nil && strings.Contains(rules, "KUBE-PROXY-CANARY") {
		err = fmt.Errorf("a chain of kube-proxy alone is still on %s", host.Name())
	}
	return errors.Join(err, programmed(host))
}

// look says what a person would see after a block.
func (d *deployed) look(t *testing.T, b block, out string) {
	t.Helper()
	switch {
	case b.section == "One node" && strings.Contains(b.text, "rollout"):
		eventually(t, func() error { // its leftovers go when Sluice's rules are complete
			return errors.Join(d.taken(d.lab.NodeA), programmed(d.lab.NodeB)) // where nothing changes
		})
	case b.section == "One node":
		if !strings.Contains(out, "healthy") || !strings.Contains(out, "web-") || !strings.Contains(out, d.mode+" (") {
			t.Errorf("a look at the node shows\n%s", out)
		}
	case b.section == "Back" && strings.Contains(b.text, "curl"):
		must(t, programmed(d.lab.NodeA))
		if d.mode == "nftables" && !d.hasTables(d.lab.NodeA) {
			t.Error("Sluice's rules went before kube-proxy's were complete")
		}
	case b.section == "Back" && strings.Contains(b.text, "rollout status daemonset/sluice-cleanup"):
		must(t, programmed(d.lab.NodeA)) // still: they were spared
	case b.section == "All nodes":
		eventually(t, func() error { return d.taken(d.lab.NodeB) })
	case b.section == modeSection:
		d.lookAtMode(t, b)
	}
}

// lookAtMode has the nodes have the rules of the mode that a block switched to.
func (d *deployed) lookAtMode(t *testing.T, b block) {
	t.Helper()
	for _, host := range []*lab.Host{d.lab.NodeA, d.lab.NodeB} {
		eventually(t, func() error {
			tables, chains := d.hasTables(host), programmed(host) == nil
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

// hasTables says whether Sluice's tables of mode nftables are on a host.
func (d *deployed) hasTables(host *lab.Host) bool {
	return strings.Contains(host.MustRun("nft", "list", "tables"), "sluice")
}

// visits are connections, one after the other.
type visits struct {
	cancel func()
	done   chan struct{}
	mu     sync.Mutex
	good   int
	bad    []error
}

// visit connects until end.
func (d *deployed) visit(to netip.AddrPort, pod string) *visits {
	ctx, cancel := context.WithCancel(context.Background())
	v := &visits{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(v.done)
		for ctx.Err() == nil {
			// A packet that is lost is sent again after a second, which is too late.
			err := d.reachesWithin(900*time.Millisecond, to, pod)
			v.mu.Lock()
			if err != nil {
				v.bad = append(v.bad, err)
			} else {
				v.good++
			}
			v.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return v
}

// end tells whether one was not answered.
func (v *visits) end(t *testing.T) {
	t.Helper()
	v.cancel()
	<-v.done
	if len(v.bad) > 0 || v.good == 0 {
		t.Errorf("%d connections were answered, %d not: %v", v.good, len(v.bad), v.bad)
	}
}
