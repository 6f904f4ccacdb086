//go:build linux

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/test/deploy/image"
)

// programBefore is the Sluice to upgrade from, which the first test builds.
type programBefore struct {
	build sync.Once
	path  string
}

// testUpgrade upgrades Sluice from the commit before, and takes that back, with traffic. In mode userspace connections
// end with the process, so that clients start after each roll-out.
func testUpgrade(t *testing.T, c *testCluster, mode string) {
	c.remove(t)
	sluice, err := sluiceImage()
	must(t, err)
	if withPrograms(mode) {
		sluice += "-iptables"
	}
	before := c.imageBefore(t, mode)
	c.install(t, mode)
	c.setImage(t, before)
	clients := func() func() {
		f := c.startTraffic(t)
		return func() { f.end(t, allBackendsStay) }
	}
	upgrade := func() {
		c.setImage(t, sluice)
		c.checkMode(t, mode)
	}
	rollBack := func() {
		c.undo(t, before)
		c.checkMode(t, mode)
	}
	if mode == "userspace" {
		upgrade()
		clients()()
		rollBack()
		clients()()
		return
	}
	end := clients()
	upgrade()
	rollBack()
	end()
}

// withPrograms reports whether a mode needs the image with the programs of iptables.
func withPrograms(mode string) bool { return mode == "iptables" || mode == "userspace" }

func (c *testCluster) setImage(t *testing.T, image string) {
	t.Helper()
	c.kubectl(t, "-n", "kube-system", "set", "image", "daemonset/sluice", "sluice="+image)
	c.rollOut(t, "kube-system", "daemonset/sluice")
}

// undo takes the last roll-out back, after which the image is the one before.
func (c *testCluster) undo(t *testing.T, image string) {
	t.Helper()
	c.kubectl(t, "-n", "kube-system", "rollout", "undo", "daemonset/sluice")
	c.rollOut(t, "kube-system", "daemonset/sluice")
	const path = "jsonpath={.spec.template.spec.containers[0].image}"
	if out := c.kubectl(t, "-n", "kube-system", "get", "daemonset/sluice", "-o", path); out != image {
		t.Errorf("after the rollback the image is %s", out)
	}
}

// imageBefore imports an image of the last release into the nodes, or until there is one of the commit before, and
// returns its name.
func (c *testCluster) imageBefore(t *testing.T, mode string) string {
	t.Helper()
	name := "sluice.test/before:" + mode
	dir := t.TempDir()
	var flags []string
	if withPrograms(mode) {
		packages, err := image.Packages(t.Context())
		must(t, err)
		flags = []string{"-packages", packages}
	}
	content, err := image.Build(t.Context(), filepath.Join(dir, "layout"), c.buildBefore(t), flags...)
	must(t, err)
	file := filepath.Join(dir, "before.tar")
	must(t, writeArchive(file, name, content))
	for _, node := range nodeNames() {
		out, err := c.on(node, c.programs["ctr"], "--address="+containerdSocket, "--namespace=k8s.io", "images",
			"import", file).CombinedOutput()
		if err != nil {
			t.Fatalf("import into %s: %v\n%s", node, err, out)
		}
	}
	return name
}

// buildBefore builds Sluice as it was. Without its history, as in an archive of the source, it is this one.
func (c *testCluster) buildBefore(t *testing.T) string {
	t.Helper()
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", absolute(".")}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	before, err := git("describe", "--tags", "--match=v[0-9]*", "--abbrev=0", "HEAD~1")
	if err != nil {
		if before, err = git("rev-parse", "HEAD~1"); err != nil {
			t.Logf("without the history of the source (%v) the upgrade is from this Sluice to itself", err)
			return c.programs["sluice"]
		}
	}
	t.Logf("the upgrade is from %s", before)
	c.before.build.Do(func() {
		dir := filepath.Join(c.work, "before")
		c.before.path = filepath.Join(c.work, "sluice-before")
		script := `mkdir "$1" && git -C "$2" archive "$3" | tar -x -C "$1" && cd "$1" && CGO_ENABLED=0 go build -trimpath ` +
			`-buildvcs=false -o "$4" ./cmd/sluice`
		out, err := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script, "bash", dir, absolute("."),
			before, c.before.path).CombinedOutput()
		if err != nil {
			t.Fatalf("build %s: %v\n%s", before, err, out)
		}
	})
	return c.before.path
}
