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

// given is what the DaemonSet of a mode gives its container, with another command
// line and without a cluster. What it would set on the host is what it may not.
func given(t *testing.T, root, mode string, p conformance.Program) confinement {
	t.Helper()
	ds := daemonSetFor(t, mode).Spec.Template.Spec
	container := ds.Containers[0].DeepCopy()
	container.Env = nil
	container.VolumeMounts = slices.DeleteFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return !isLock(&ds, m) })
	k := kubelet{root: root, node: p.Host, dir: t.TempDir(), more: map[string]string{"/etc/sluice": p.Manifests}}
	container.Command = append([]string{
		"sluice", "--manifests=/etc/sluice", "--oom-score-adj=-997", "--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
	}, p.Args...)
	return k.confinement(t, &ds, container)
}

// cannot is what the DaemonSet of deploy/kubernetes/base has no right to.
func cannot() map[int]string {
	const localhost = "127.0.0.1 is routed by the kernel parameter route_localnet, which needs the overlay sysctls"
	return map[int]string{
		67: localhost, 68: localhost, 69: localhost, 71: localhost,
		163: "replaces files for 20 seconds",
		235: "replaces files for a minute",
		242: "in files a port needs no name, because people write them",
	}
}

// TestConformanceAsDeployed puts the program through the suite with what the
// DaemonSet gives it and no more.
func TestConformanceAsDeployed(t *testing.T) {
	nft := asDeployed(t, "iptables-nft", conformance.Iptables("nft"))
	legacy := asDeployed(t, "iptables-legacy", conformance.Iptables("legacy"))
	nft.Only, legacy.Only = someOfAll(), someOfAll()
	conformance.Run(t, asDeployed(t, "nftables", conformance.Nftables()), nft, legacy)
}

// someOfAll are scenarios of all sections, and all that ask for another thing of
// the host: each protocol, match and target, interfaces, edits of others,
// conntrack, restarts, what is refused, and the end.
func someOfAll() []int {
	return []int{
		5, 22, 28, 29, 46, 54, 56, 57, 82, 96, 110, 122, 126, 145, 156, 175, 181, 195, 197, 210, 219, 226,
		273, 274, 277, 278, 279, 282, 297, 305, 308, 309,
	}
}

// asDeployed is the program in a mode, on hosts that use a variant of iptables.
func asDeployed(t *testing.T, name string, nature conformance.Traits) conformance.Plane {
	t.Helper()
	mode, variant, _ := strings.Cut(name, "-")
	root := imageFor(t, mode)
	return conformance.Plane{
		Name: name + " as deployed", Traits: nature,
		Unsupported: cannot(),
		Start: func(t testing.TB, _ *lab.Host) plane.Plane {
			t.Skip("looks into the proxy, which is another process here")
			return nil
		},
		Launch: func(tb testing.TB, p conformance.Program) func() {
			t, _ := tb.(*testing.T)
			if variant != "" {
				leaveHint(t, p.Host, variant)
				// What others do to legacy tables is to be noticed before the suite loses its patience.
				p.Args = append(slices.Clone(p.Args), "--iptables-sync-period=5s")
			}
			process := given(t, root, mode, p).start(t, p.Host)
			return sync.OnceFunc(func() {
				if err := process.stop(); err != nil {
					t.Errorf("the program ended with: %v\n%s", err, process.log)
				}
			})
		},
	}
}

// leaveHint is what the kubelet does first: it tells which variant its host uses.
func leaveHint(t *testing.T, host *lab.Host, variant string) {
	t.Helper()
	program, hint := "iptables-"+variant, "KUBE-IPTABLES-HINT"
	env := []string{"env", fmt.Sprintf("XTABLES_LOCKFILE=/run/xtables-%d.lock", host.NetNSFD()), program, "-t", "mangle", "-w"}
	if _, err := host.Run("", append(env, "-L", hint)...); err == nil {
		return
	}
	host.MustRun(append(env, "-N", hint)...)
}

// TestEachMissingRightIsReported takes away one thing at a time that the DaemonSet gives,
// and Sluice says what it lacks.
func TestEachMissingRightIsReported(t *testing.T) {
	plain, iptables := image(t), imageFor(t, "iptables")
	for _, tt := range []struct {
		name          string
		root          string
		mode, variant string
		less          func(*confinement)
		says          string
	}{
		{"no NET_ADMIN", plain, "nftables", "nft", func(c *confinement) { c.Capabilities = nil }, "CAP_NET_ADMIN"},
		{"nobody", plain, "nftables", "nft", func(c *confinement) { c.User = 65534 }, "CAP_NET_ADMIN"},
		{"no NET_ADMIN for nft", iptables, "iptables", "nft", func(c *confinement) { c.Capabilities = nil }, "CAP_NET_ADMIN"},
		{
			"no NET_RAW for legacy", iptables, "iptables", "legacy",
			func(c *confinement) { c.Capabilities = []int{unix.CAP_NET_ADMIN} }, "CAP_NET_RAW",
		},
		{"the image without programs", plain, "iptables", "nft", func(*confinement) {}, "image whose tag ends in -iptables"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := lab.New(t, lab.Options{})
			leaveHint(t, l.NodeA, tt.variant)
			c := given(t, tt.root, tt.mode, conformance.Program{Host: l.NodeA, Manifests: project("examples"), Args: []string{"--proxy-mode=" + tt.mode}})
			tt.less(&c)
			p := c.start(t, l.NodeA)
			if err := p.wait(); err == nil {
				t.Error("it ends as if all were well")
			}
			if !strings.Contains(p.log.String(), tt.says) {
				t.Errorf("it says\n%s\nwant something of %q", p.log, tt.says)
			}
		})
	}
}

// The lock is that of the host: while another program has it, nothing is written
// to legacy tables, and nothing is given up.
func TestLockIsThatOfTheHost(t *testing.T) {
	l := lab.New(t, lab.Options{})
	leaveHint(t, l.NodeA, "legacy")
	dir := t.TempDir()
	c := given(t, imageFor(t, "iptables"), "iptables", conformance.Program{Host: l.NodeA, Manifests: dir, Args: []string{"--proxy-mode=iptables"}})
	p := c.start(t, l.NodeA)
	p.says("msg=Synced")
	lock, err := os.OpenFile(c.Writable[lockFile], os.O_RDONLY, 0)
	must(t, err)
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	web, err := os.ReadFile(project("examples/web.yaml"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "web.yaml"), web, 0o644))
	p.says("Waiting for the lock of iptables")
	if strings.Contains(p.log.String(), "services=1") {
		t.Errorf("it wrote while another program had the lock:\n%s", p.log)
	}
	must(t, lock.Close()) // which unlocks
	eventually(t, func() error {
		if !strings.Contains(l.NodeA.MustRun("iptables-legacy-save", "-t", "nat"), "default/web") {
			return errors.New("the Service is not there")
		}
		return nil
	})
	must(t, p.stop())
}

// The child that says what it may do shows that the tests above confine at all.
func TestAConfinedProcessHasOnlyItsRights(t *testing.T) {
	l := lab.New(t, lab.Options{})
	c := given(t, image(t), "nftables", conformance.Program{Host: l.NodeA, Manifests: project("examples")})
	if len(c.Capabilities) != 1 || c.Capabilities[0] != unix.CAP_NET_ADMIN || c.GainNew || c.Privileged {
		t.Fatalf("the DaemonSet gives %v", c)
	}
	p := c.start(t, l.NodeA)
	p.says("msg=Synced")
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
		if words[1] != "/proc" && words[1] != "/dev/null" && !strings.HasPrefix(words[3], "ro") {
			t.Errorf("writable: %s", line)
		}
	}
	must(t, p.stop())
}
