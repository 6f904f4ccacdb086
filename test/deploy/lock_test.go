//go:build linux

package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/conformance"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The daemon runs in a pod with a read-only root, without host paths, and with NET_ADMIN.
// Commands on the host and in another pod of the same network namespace reach it, and neither
// a second daemon nor a cleanup can run at the same time.
func TestTheLockIsSharedByHostAndPods(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			root := imageFor(t, mode)
			l := lab.New(t, lab.Options{})
			createHint(t, l.NodeA, "nft")
			program := conformance.Program{Host: l.NodeA, Manifests: projectPath("examples"), Args: []string{"--proxy-mode=" + mode}}
			c := daemonSetContainer(t, root, mode, program)
			daemon := c.start(t, l.NodeA)
			daemon.waitForLog("msg=Synced")

			sluice := root + "/usr/local/bin/sluice"
			if out, err := l.NodeA.Run("", sluice, "status"); err != nil || !strings.Contains(out, "healthy") {
				t.Errorf("status on the host: %v\n%s", err, out)
			}
			status := daemonSetContainer(t, root, mode, program)
			status.Argv = []string{"sluice", "status"}
			pod := status.start(t, l.NodeA)
			if err := pod.wait(); err != nil {
				t.Errorf("status in another pod: %v\n%s", err, pod.log)
			}
			second := daemonSetContainer(t, root, mode, program).start(t, l.NodeA)
			if err := second.wait(); err == nil || !strings.Contains(second.log.String(), "already serves this network namespace") {
				t.Errorf("a second daemon in another pod: %v\n%s", err, second.log)
			}
			args := slices.Concat([]string{sluice}, program.Args, []string{"--cleanup"})
			if out, err := l.NodeA.Run("", args...); err == nil || !strings.Contains(err.Error()+out, "already serves this network namespace") {
				t.Errorf("--cleanup on the host while the daemon is running: %v\n%s", err, out)
			}
			if out, err := l.NodeA.Run("", sluice, "diff"); err != nil {
				t.Errorf("afterwards the rules differ: %v\n%s", err, out)
			}
			must(t, daemon.stop())
			if out, err := l.NodeA.Run("", args...); err != nil {
				t.Errorf("--cleanup after the end of the daemon: %v\n%s", err, out)
			}
		})
	}
}
