//go:build linux

package deploy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/test/conformance"
	"github.com/sluice-proxy/sluice/test/lab"
)

// daemonSetContainer returns the confinement of the DaemonSet's container of a mode, with another command line and
// without a cluster. The flags disable the kernel parameters that the container may not set.
func daemonSetContainer(t *testing.T, root, mode string, p conformance.Program) confinement {
	t.Helper()
	ds := daemonSetFor(t, mode).Spec.Template.Spec
	container := ds.Containers[0].DeepCopy()
	container.Env = nil
	container.VolumeMounts = slices.DeleteFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
		return !isLock(&ds, m) && !isEmptyDir(&ds, m)
	})
	k := kubelet{root: root, node: p.Host, dir: t.TempDir(), extraMounts: map[string]string{"/etc/sluice": p.Manifests}}
	container.Command = append([]string{
		"sluice", "--manifests=/etc/sluice", "--oom-score-adj=-997", "--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
	}, p.Args...)
	return k.confinement(t, &ds, container)
}

// unsupported are the conformance scenarios that do not work with the DaemonSet of
// deploy/kubernetes/base, and the reasons.
func unsupported() map[int]string {
	const localhost = "127.0.0.1 is routed by the kernel parameter route_localnet, which needs the overlay sysctls"
	return map[int]string{
		67: localhost, 68: localhost, 69: localhost, 71: localhost,
		163: "replaces files for 20 seconds",
		235: "replaces files for a minute",
		242: "in manifest files the name of a port is optional",
	}
}

// TestConformanceAsDeployed runs the conformance scenarios with exactly the privileges of the DaemonSet.
func TestConformanceAsDeployed(t *testing.T) {
	nft := deployedPlane(t, "iptables-nft", conformance.Iptables("nft"))
	legacy := deployedPlane(t, "iptables-legacy", conformance.Iptables("legacy"))
	nft.Only, legacy.Only = iptablesScenarios(), iptablesScenarios()
	process := deployedPlane(t, "userspace-nft", conformance.Userspace("nft"))
	process.Only = userspaceScenarios()
	conformance.Run(t, deployedPlane(t, "nftables", conformance.Nftables()), nft, legacy, process)
}

// iptablesScenarios are scenarios of all sections, including all that need further features of the host: each protocol,
// match and target, interfaces, foreign edits, conntrack, restarts, rejects and cleanup.
func iptablesScenarios() []int {
	return []int{
		5, 22, 28, 29, 46, 54, 56, 57, 82, 96, 110, 122, 126, 145, 156, 175, 181, 195, 197, 210, 219, 226,
		273, 274, 277, 278, 279, 282, 297, 305, 308, 309,
	}
}

// userspaceScenarios are the iptablesScenarios that a process serves: without the ones in which it is stopped, and
// without SCTP.
func userspaceScenarios() []int {
	left := []int{195, 273, 274, 309}
	return slices.DeleteFunc(iptablesScenarios(), func(n int) bool { return slices.Contains(left, n) })
}

// deployedPlane is the program in a mode, on hosts with a variant of iptables.
func deployedPlane(t *testing.T, name string, traits conformance.Traits) conformance.Plane {
	t.Helper()
	mode, variant, _ := strings.Cut(name, "-")
	root := imageFor(t, mode)
	return conformance.Plane{
		Name: name + " as deployed", Traits: traits,
		Unsupported: unsupported(),
		Open: func(t testing.TB, _ *lab.Host, _ plane.Setup) *plane.Opened {
			t.Skip("needs the proxy in the process of the test")
			return nil
		},
		Launch: func(tb testing.TB, p conformance.Program) func() {
			t, _ := tb.(*testing.T)
			if variant != "" {
				createHint(t, p.Host, variant)
				// Poll legacy tables often enough to detect foreign edits before the tests time out.
				p.Args = append(slices.Clone(p.Args), "--iptables-sync-period=5s")
			}
			process := daemonSetContainer(t, root, mode, p).start(t, p.Host)
			return sync.OnceFunc(func() {
				if err := process.stop(); err != nil {
					t.Errorf("the program exited with: %v\n%s", err, process.log)
				}
			})
		},
	}
}

// createHint creates the chain by which kubelet shows which variant its host uses.
func createHint(t *testing.T, host *lab.Host, variant string) {
	t.Helper()
	program, hint := "iptables-"+variant, "KUBE-IPTABLES-HINT"
	env := []string{
		"env", fmt.Sprintf("XTABLES_LOCKFILE=/run/xtables-%d.lock", host.NetNSFD()), program, "-t", "mangle", "-w",
	}
	if _, err := host.Run("", append(env, "-L", hint)...); err == nil {
		return
	}
	host.MustRun(append(env, "-N", hint)...)
}

// TestEachMissingRightIsReported removes one privilege of the DaemonSet at a time, and verifies
// that Sluice names it in its error.
func TestEachMissingRightIsReported(t *testing.T) {
	plain, iptables := imageFor(t, "nftables"), imageFor(t, "iptables")
	for _, tt := range []struct {
		name          string
		root          string
		mode, variant string
		remove        func(*confinement)
		want          string
	}{
		{"no NET_ADMIN", plain, "nftables", "nft", func(c *confinement) { c.Capabilities = nil }, "CAP_NET_ADMIN"},
		{"not root", plain, "nftables", "nft", func(c *confinement) { c.User = 65534 }, "CAP_NET_ADMIN"},
		{"no NET_ADMIN for nft", iptables, "iptables", "nft", func(c *confinement) { c.Capabilities = nil }, "CAP_NET_ADMIN"},
		{
			"no NET_RAW for legacy", iptables, "iptables", "legacy",
			func(c *confinement) { c.Capabilities = []int{unix.CAP_NET_ADMIN} }, "CAP_NET_RAW",
		},
		{"the image without programs", plain, "iptables", "nft", func(*confinement) {}, "image whose tag ends in -iptables"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := lab.New(t, lab.Options{})
			createHint(t, l.NodeA, tt.variant)
			c := daemonSetContainer(t, tt.root, tt.mode,
				conformance.Program{Host: l.NodeA, Manifests: projectPath("examples"), Args: []string{"--proxy-mode=" + tt.mode}})
			tt.remove(&c)
			p := c.start(t, l.NodeA)
			if err := p.wait(); err == nil {
				t.Error("it exits without an error")
			}
			if !strings.Contains(p.log.String(), tt.want) {
				t.Errorf("the log is\n%s\nwant %q", p.log, tt.want)
			}
		})
	}
}

// The container uses the xtables lock of the host: while another program holds it, Sluice does
// not write to legacy tables, and writes afterwards.
func TestLockIsThatOfTheHost(t *testing.T) {
	l := lab.New(t, lab.Options{})
	createHint(t, l.NodeA, "legacy")
	dir := t.TempDir()
	c := daemonSetContainer(t, imageFor(t, "iptables"), "iptables",
		conformance.Program{Host: l.NodeA, Manifests: dir, Args: []string{"--proxy-mode=iptables"}})
	p := c.start(t, l.NodeA)
	p.waitForLog("msg=Synced")
	lock, err := os.OpenFile(c.Writable[lockFile], os.O_RDONLY, 0)
	must(t, err)
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	web, err := os.ReadFile(projectPath("examples/web.yaml"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "web.yaml"), web, 0o644))
	p.waitForLog("lock /run/xtables.lock: held by ")
	if strings.Contains(p.log.String(), "services=1") {
		t.Errorf("it wrote while another program held the lock:\n%s", p.log)
	}
	must(t, lock.Close()) // releases the lock
	eventually(t, func() error {
		if !strings.Contains(l.NodeA.MustRun("iptables-legacy-save", "-t", "nat"), "default/web") {
			return errors.New("the Service is not programmed")
		}
		return nil
	})
	must(t, p.stop())
}

// The status of the process verifies that confinement works in the tests above.
func TestAConfinedProcessHasOnlyItsRights(t *testing.T) {
	l := lab.New(t, lab.Options{})
	c := daemonSetContainer(t, imageFor(t, "nftables"), "nftables",
		conformance.Program{Host: l.NodeA, Manifests: projectPath("examples")})
	if len(c.Capabilities) != 1 || c.Capabilities[0] != unix.CAP_NET_ADMIN || c.GainNew || c.Privileged {
		t.Fatalf("the DaemonSet grants %v", c)
	}
	p := c.start(t, l.NodeA)
	p.waitForLog("msg=Synced")
	status := l.NodeA.MustRun("cat", "/proc/"+strconv.Itoa(p.cmd.Process.Pid)+"/status")
	for _, want := range []string{
		"CapEff:\t0000000000001000", "CapPrm:\t0000000000001000", "CapBnd:\t0000000000001000", "CapInh:\t0000000000000000",
		"NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(status, want+"\n") {
			t.Errorf("no %q in the status of the process:\n%s", want, status)
		}
	}
	mounts := l.NodeA.MustRun("cat", "/proc/"+strconv.Itoa(p.cmd.Process.Pid)+"/mounts")
	for line := range strings.Lines(mounts) {
		words := strings.Fields(line)
		if !slices.Contains([]string{"/proc", "/dev/null", socketFolder}, words[1]) && !strings.HasPrefix(words[3], "ro") {
			t.Errorf("writable: %s", line)
		}
	}
	must(t, p.stop())
}
