//go:build linux

package deploy

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/test/conformance"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The daemon runs in a pod with a read-only root, without host paths, and with NET_ADMIN.
// Commands in the pod reach it; those on the host know of it. Neither a second daemon nor a
// cleanup can run at the same time, on the host or in another pod of the same network namespace.
func TestTheLockIsSharedByHostAndPods(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			root := imageFor(t, mode)
			l := lab.New(t, lab.Options{})
			createHint(t, l.NodeA, "nft")
			program := conformance.Program{
				Host: l.NodeA, Manifests: projectPath("examples"), Args: []string{"--proxy-mode=" + mode},
			}
			c := daemonSetContainer(t, root, mode, program)
			daemon := c.start(t, l.NodeA)
			daemon.waitForLog("msg=Synced")

			sluice := root + "/usr/local/bin/sluice"
			inPod := func(command string) {
				t.Helper()
				exec := c // kubectl exec
				exec.Argv = []string{"sluice", command}
				if p := exec.start(t, l.NodeA); p.wait() != nil {
					t.Errorf("%s in the pod:\n%s", command, p.log)
				}
			}
			inPod("status")
			checkAskedElsewhere(t, l.NodeA)
			second := daemonSetContainer(t, root, mode, program).start(t, l.NodeA)
			if err := second.wait(); err == nil ||
				!strings.Contains(second.log.String(), "already serves this network namespace") {
				t.Errorf("a second daemon in another pod: %v\n%s", err, second.log)
			}
			args := slices.Concat([]string{sluice}, program.Args, []string{"--cleanup"})
			if out, err := l.NodeA.Run("", args...); err == nil ||
				!strings.Contains(err.Error()+out, "already serves this network namespace") {
				t.Errorf("--cleanup on the host while the daemon is running: %v\n%s", err, out)
			}
			inPod("diff")
			must(t, daemon.stop())
			if out, err := l.NodeA.Run("", args...); err != nil {
				t.Errorf("--cleanup after the end of the daemon: %v\n%s", err, out)
			}
		})
	}
}

// checkAskedElsewhere verifies that a command on the host, which does not see the socket in the pod, says what to do.
func checkAskedElsewhere(t *testing.T, host *lab.Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := admin.Dial(admin.Options{NetNS: host.NetNSFD()}).Get(ctx, "/status", nil, new(any))
	if err == nil || !strings.Contains(err.Error(), "run the command there, for example with kubectl exec") {
		t.Errorf("on the host: %v", err)
	}
}
