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

// The unit, and what a mode adds to it.
const (
	unitFile = "deploy/systemd/sluice.service"
	dropIn   = "deploy/systemd/iptables.conf"
)

// unit are the settings in files, each with all its values.
func unit(t *testing.T, files ...string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(project(file))
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if key, value, is := strings.Cut(strings.TrimSpace(line), "="); is && !strings.HasPrefix(key, "#") {
				out[key] = append(out[key], value)
			}
		}
	}
	return out
}

// systemd's own tools find nothing that it does not know, and little exposed.
func TestUnitIsSound(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatal("systemd-analyze is of the package systemd: install it")
	}
	dir := t.TempDir()
	must(t, os.Symlink(project(unitFile), filepath.Join(dir, "sluice.service")))
	said, _ := exec.Command("systemd-analyze", "verify", filepath.Join(dir, "sluice.service")).CombinedOutput()
	must(t, os.Mkdir(filepath.Join(dir, "sluice.service.d"), 0o755))
	must(t, os.Symlink(project(dropIn), filepath.Join(dir, "sluice.service.d/iptables.conf")))
	more, _ := exec.Command("systemd-analyze", "verify", filepath.Join(dir, "sluice.service")).CombinedOutput()
	for line := range strings.Lines(string(said) + string(more)) {
		if !strings.Contains(line, "/usr/local/bin/sluice is not executable: No such file") { // it is not installed here
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	report := run(t, "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=40", project(unitFile))
	level := regexp.MustCompile(`Overall exposure level for sluice.service: ([0-9.]+)`).FindStringSubmatch(report)
	if level == nil {
		t.Fatalf("no level of exposure in\n%s", report)
	}
	if exposure, err := strconv.ParseFloat(level[1], 64); err != nil || exposure >= 4 {
		t.Errorf("exposure %s, want less than 4", level[1])
	}
}

// TestUnitWorks runs the program under what the unit leaves it, as far as that
// needs no systemd: capabilities, no new privileges, the filters of system calls
// and of families of sockets, and nothing on the host to write to. Not tried are
// PrivateTmp, PrivateDevices, RestrictNamespaces, MemoryDenyWriteExecute and the
// Protect settings besides those for files, which are filters of system calls
// that the program does not make, or mounts of what it does not look at.
func TestUnitWorks(t *testing.T) {
	settings := unit(t, unitFile)
	if !slices.Equal(settings["CapabilityBoundingSet"], []string{"CAP_NET_ADMIN"}) ||
		settings["RestrictAddressFamilies"][0] != "AF_NETLINK AF_INET AF_INET6 AF_UNIX" ||
		settings["NoNewPrivileges"][0] != "yes" || settings["ProtectSystem"][0] != "strict" || settings["ProtectKernelTunables"][0] != "yes" {
		t.Fatalf("the unit says other than what is tried here: %v", settings)
	}
	l := lab.New(t, lab.Options{})
	p := bounded(t, settings, "nftables").start(t, l.NodeA)
	p.says("msg=Synced")
	if rules := l.NodeA.MustRun("nft", "list", "table", "ip", "sluice"); !strings.Contains(rules, "default/web") {
		t.Errorf("the rules are\n%s", rules)
	}
	must(t, p.stop())
}

// TestUnitWorksInIptablesMode does the same with the drop-in, on a host with the
// legacy variant, which needs more, and on one with nft.
func TestUnitWorksInIptablesMode(t *testing.T) {
	settings := unit(t, unitFile, dropIn)
	if !slices.Equal(settings["CapabilityBoundingSet"], []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}) ||
		!slices.Equal(settings["ReadWritePaths"], []string{lockFile}) ||
		!slices.Contains(settings["ExecStartPre"], "+/usr/bin/touch "+lockFile) {
		t.Fatalf("the drop-in says other than what is tried here: %v", settings)
	}
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			l := lab.New(t, lab.Options{})
			leaveHint(t, l.NodeA, variant)
			c := bounded(t, settings, "iptables")
			c.Capabilities = append(c.Capabilities, unix.CAP_NET_RAW)
			l.NodeA.MustRun("touch", lockFile) // as ExecStartPre=
			c.Writable = map[string]string{lockFile: lockFile}
			p := c.start(t, l.NodeA)
			p.says("msg=Synced")
			if rules := l.NodeA.MustRun("iptables-"+variant+"-save", "-t", "nat"); !strings.Contains(rules, "default/web") {
				t.Errorf("the rules are\n%s", rules)
			}
			must(t, p.stop())
		})
	}
}

// bounded is the program under what the unit leaves it.
func bounded(t *testing.T, settings map[string][]string, mode string) confinement {
	t.Helper()
	return confinement{
		Capabilities: []int{unix.CAP_NET_ADMIN}, OOMScoreAdj: -999,
		Filter: only(t, calls(t, settings["SystemCallFilter"]), unix.AF_NETLINK, unix.AF_INET, unix.AF_INET6, unix.AF_UNIX),

		Argv: []string{
			image(t) + "/usr/local/bin/sluice", "--manifests=" + project("examples"), "--hostname-override=node-a", "--proxy-mode=" + mode,
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		},
	}
}

// calls are the names of the system calls that a SystemCallFilter lets through.
func calls(t *testing.T, filter []string) []string {
	t.Helper()
	allowed := map[string]bool{}
	for _, line := range filter {
		list, denied := strings.CutPrefix(line, "~")
		for group := range strings.FieldsSeq(list) {
			for _, name := range callsOf(t, group) {
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
	// Of @default, which is always allowed.
	return append(out, callsOf(t, "@default")...)
}

// callsOf takes a group of systemd apart.
func callsOf(t *testing.T, group string) []string {
	t.Helper()
	if !strings.HasPrefix(group, "@") {
		return []string{group}
	}
	var out []string
	for i, line := range strings.Split(run(t, "systemd-analyze", "syscall-filter", "--no-pager", group), "\n") {
		line = strings.TrimSpace(line)
		if i > 0 && line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, callsOf(t, line)...)
		}
	}
	return out
}
