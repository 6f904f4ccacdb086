//go:build linux

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// The unit, and the drop-ins for modes iptables and ebpf.
const (
	unitFile = "deploy/systemd/sluice.service"
	dropIn   = "deploy/systemd/iptables.conf"
	ebpfUnit = "deploy/systemd/ebpf.conf"
)

// unitSettings returns the settings in unit files, each with all its values.
func unitSettings(t *testing.T, files ...string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(projectPath(file))
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if key, value, is := strings.Cut(strings.TrimSpace(line), "="); is && !strings.HasPrefix(key, "#") {
				out[key] = append(out[key], value)
			}
		}
	}
	return out
}

// systemd-analyze finds no unknown setting and a low exposure.
func TestSystemdAnalyze(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatal("systemd-analyze is missing: install the package systemd")
	}
	dir := t.TempDir()
	must(t, os.Symlink(projectPath(unitFile), filepath.Join(dir, "sluice.service")))
	unit, _ := exec.Command("systemd-analyze", "verify", filepath.Join(dir, "sluice.service")).CombinedOutput()
	must(t, os.Mkdir(filepath.Join(dir, "sluice.service.d"), 0o755))
	must(t, os.Symlink(projectPath(dropIn), filepath.Join(dir, "sluice.service.d/iptables.conf")))
	must(t, os.Symlink(projectPath(ebpfUnit), filepath.Join(dir, "sluice.service.d/ebpf.conf")))
	withDropIn, _ := exec.Command("systemd-analyze", "verify", filepath.Join(dir, "sluice.service")).CombinedOutput()
	for line := range strings.Lines(string(unit) + string(withDropIn)) {
		// The program is not installed on the test machine.
		if !strings.Contains(line, "/usr/local/bin/sluice is not executable: No such file") {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	report := run(t, "systemd-analyze", "security", "--offline=true", "--no-pager",
		"--threshold=40", projectPath(unitFile))
	level := regexp.MustCompile(`Overall exposure level for sluice.service: ([0-9.]+)`).FindStringSubmatch(report)
	if level == nil {
		t.Fatalf("no exposure level in\n%s", report)
	}
	if exposure, err := strconv.ParseFloat(level[1], 64); err != nil || exposure >= 4 {
		t.Errorf("exposure %s, want less than 4", level[1])
	}
}

// TestUnitWorks runs the program with the restrictions of the unit that need no systemd: capabilities, no new
// privileges, the filters of system calls and socket families, and a read-only host. It does not test PrivateTmp,
// PrivateDevices, RestrictNamespaces, MemoryDenyWriteExecute and the Protect settings not for files: these filter
// system calls that the program does not make, or mount over files that it does not use.
func TestUnitWorks(t *testing.T) {
	settings := unitSettings(t, unitFile)
	if !slices.Equal(settings["CapabilityBoundingSet"], []string{"CAP_NET_ADMIN"}) ||
		settings["RestrictAddressFamilies"][0] != "AF_NETLINK AF_INET AF_INET6 AF_UNIX" ||
		settings["NoNewPrivileges"][0] != "yes" || settings["ProtectSystem"][0] != "strict" ||
		settings["ProtectKernelTunables"][0] != "yes" ||
		settings["RuntimeDirectory"][0] != "sluice" {
		t.Fatalf("the unit has other settings than this test: %v", settings)
	}
	l := lab.New(t, lab.Options{})
	c := unitConfinement(t, settings, "nftables")
	p := c.start(t, l.NodeA)
	p.waitForLog("msg=Synced")
	if rules := l.NodeA.MustRun("nft", "list", "table", "ip", "sluice"); !strings.Contains(rules, "default/web") {
		t.Errorf("the rules are\n%s", rules)
	}
	if out := l.NodeA.MustRun(c.Argv[0], "status"); !strings.Contains(out, "healthy") {
		t.Errorf("the status is\n%s", out)
	}
	must(t, p.stop())
}

// TestUnitWorksInIptablesMode does the same with the drop-in, on hosts with either variant of iptables.
func TestUnitWorksInIptablesMode(t *testing.T) {
	settings := unitSettings(t, unitFile, dropIn)
	if !slices.Equal(settings["CapabilityBoundingSet"], []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}) ||
		!slices.Equal(settings["ReadWritePaths"], []string{lockFile}) ||
		!slices.Contains(settings["ExecStartPre"], "+/usr/bin/touch "+lockFile) {
		t.Fatalf("the drop-in has other settings than this test: %v", settings)
	}
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			l := lab.New(t, lab.Options{})
			createHint(t, l.NodeA, variant)
			c := unitConfinement(t, settings, "iptables")
			c.Capabilities = append(c.Capabilities, unix.CAP_NET_RAW)
			l.NodeA.MustRun("touch", lockFile) // like ExecStartPre=
			c.Writable[lockFile] = lockFile
			p := c.start(t, l.NodeA)
			p.waitForLog("msg=Synced")
			if rules := l.NodeA.MustRun("iptables-"+variant+"-save", "-t", "nat"); !strings.Contains(rules, "default/web") {
				t.Errorf("the rules are\n%s", rules)
			}
			must(t, p.stop())
		})
	}
}

// TestUnitWorksInEBPFMode does the same with the drop-in for mode ebpf.
func TestUnitWorksInEBPFMode(t *testing.T) {
	settings := unitSettings(t, unitFile, ebpfUnit)
	if !slices.Equal(settings["CapabilityBoundingSet"], []string{"CAP_NET_ADMIN", "CAP_SYS_ADMIN CAP_SYS_PTRACE"}) ||
		!slices.Equal(settings["RestrictNamespaces"], []string{"yes", "net"}) ||
		!slices.Equal(settings["ProtectKernelTunables"], []string{"yes", "no"}) {
		t.Fatalf("the drop-in has other settings than this test: %v", settings)
	}
	n := newSocketsNode(t)
	c := unitConfinement(t, settings, "ebpf")
	c.Capabilities = append(c.Capabilities, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE)
	c.HostPID = true
	c.Writable["/sys/fs/bpf"] = n.bpf
	c.Argv = append(c.Argv, "--cgroup-root="+n.lab.NodeA.Cgroup())
	p := c.start(t, n.lab.NodeA)
	p.waitForLog("msg=Synced")
	if list := problems(p.log.String()); len(list) > 0 {
		t.Errorf("%q:\n%s", list, p.log)
	}
	must(t, p.stop())
}

// unitConfinement is the program with the restrictions of the unit.
func unitConfinement(t *testing.T, settings map[string][]string, mode string) confinement {
	t.Helper()
	return confinement{
		Capabilities: []int{unix.CAP_NET_ADMIN}, OOMScoreAdj: -999, Writable: hostSocketFolder(t),
		Filter: allowOnly(t, allowedCalls(t, settings["SystemCallFilter"]), unix.AF_NETLINK,
			unix.AF_INET, unix.AF_INET6, unix.AF_UNIX),

		Argv: []string{
			imageFor(t, "nftables") + "/usr/local/bin/sluice", "--manifests=" + projectPath("examples"),
			"--hostname-override=node-a", "--proxy-mode=" + mode,
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		},
	}
}

// allowedCalls returns the names of the system calls that a SystemCallFilter allows.
func allowedCalls(t *testing.T, filter []string) []string {
	t.Helper()
	allowed := map[string]bool{}
	for _, line := range filter {
		list, denied := strings.CutPrefix(line, "~")
		for group := range strings.FieldsSeq(list) {
			for _, name := range expandGroup(t, group) {
				allowed[name] = !denied
			}
		}
	}
	var out []string
	for name, is := range allowed {
		if is {
			out = append(out, name)
		}
	}
	// systemd always allows @default.
	return append(out, expandGroup(t, "@default")...)
}

// expandGroup returns the system calls of a group of systemd.
func expandGroup(t *testing.T, group string) []string {
	t.Helper()
	if !strings.HasPrefix(group, "@") {
		return []string{group}
	}
	var out []string
	for i, line := range strings.Split(run(t, "systemd-analyze", "syscall-filter", "--no-pager", group), "\n") {
		line = strings.TrimSpace(line)
		if i > 0 && line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, expandGroup(t, line)...)
		}
	}
	return out
}
