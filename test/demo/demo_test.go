//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) {
	lab.RaisePriority()
	os.Exit(m.Run())
}

// TestDemo runs the demo to its end, and stops others early. In each case nothing of it is left.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the demo")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "demo")
	if err := harness.Build(program, "."); err != nil {
		t.Fatal(err)
	}
	sluice, err := harness.ProgramIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		stop unix.Signal // 0: none
		exit int
	}{
		{"to its end", 0, 0},
		{"interrupted", unix.SIGINT, exitInterrupted},
		{"killed", unix.SIGKILL, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDemo(t, program, sluice)
			if got := d.run(t, c.stop); got != c.exit {
				t.Errorf("exit code %d, want %d:\n%s", got, c.exit, &d.out)
			}
			waitUntil(t, "all processes have ended", func() bool { return !runs(t, d.sluice) && !runs(t, d.program) })
			if c.stop == 0 {
				checkOutput(t, d.out.String())
			}
		})
	}
}

// demo is one run of the demo. Its programs have names of their own, by which the test finds their processes.
type demo struct {
	program, sluice string
	out             bytes.Buffer
}

func newDemo(t *testing.T, program, sluice string) *demo {
	t.Helper()
	dir := t.TempDir()
	d := &demo{program: filepath.Join(dir, "demo"), sluice: filepath.Join(dir, "sluice")}
	for to, from := range map[string]string{d.program: program, d.sluice: sluice} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, text, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// run runs the demo, and sends it a signal once Sluice runs, unless it is 0. It returns the exit code.
func (d *demo) run(t *testing.T, stop unix.Signal) int {
	t.Helper()
	cmd := exec.Command(d.program, "-sluice", d.sluice, "-examples", examples)
	cmd.Stdout, cmd.Stderr = &d.out, &d.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if stop != 0 {
		waitUntil(t, "Sluice runs", func() bool { return runs(t, d.sluice) })
		if err := cmd.Process.Signal(stop); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait() // the caller checks the exit code
	return cmd.ProcessState.ExitCode()
}

// checkOutput compares the output of a complete run with the animation of one.
func checkOutput(t *testing.T, out string) {
	t.Helper()
	printed := shape(out)
	for _, line := range checkedLines(t) {
		if !strings.Contains(printed, shape(line)) {
			t.Errorf("docs/demo.svg has a line that the demo does not print, with any numbers: %s", line)
		}
	}
	for _, bad := range []string{
		"✗", "It had warned", "\x1b", "Mode iptables  not shown", "Mode ebpf      not shown", "Mode userspace not shown",
	} {
		if strings.Contains(out, bad) {
			t.Errorf("the output has %q", bad)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// The demo names what a machine lacks for a mode, and one command that loads all that is a module.
func TestLacks(t *testing.T) {
	for _, c := range []struct{ name, found, why, command string }{
		{"nothing", `{"found":"Linux 6.1 supports mode ipvs"},{"found":"clusterCIDR is not set"}`, "", ""},
		{
			"modules",
			`{"found":"Linux 6.1 does not support mode ipvs: missing kernel feature: the kernel has no IPVS: load it with: ` +
				`modprobe ip_vs, or use a kernel with CONFIG_IP_VS (this kernel has no IPVS)"},` +
				`{"found":"Linux 6.1 does not support mode ipvs: missing kernel feature: the kernel has no dummy interfaces: ` +
				`load it with: modprobe dummy, or use a kernel with CONFIG_DUMMY"}`,
			"the kernel has no IPVS, the kernel has no dummy interfaces", "modprobe -a ip_vs dummy",
		},
		{
			"a file system",
			`{"found":"cgroup v2 is mounted at /c; all connections are translated packet by packet: missing kernel feature: ` +
				`no bpffs: mount it with: mount -t bpf bpf /sys/fs/bpf"}`,
			"no bpffs: mount it with: mount -t bpf bpf /sys/fs/bpf", "",
		},
		{
			"a right",
			`{"found":"Linux 6.1, mode iptables not tested: read legacy tables: permission denied: run as root"}`,
			"read legacy tables: permission denied: run as root", "",
		},
	} {
		why, command, err := lacks([]byte(`{"items":[` + c.found + `]}`))
		if err != nil || why != c.why || command != c.command {
			t.Errorf("%s: %q, %q, %v; want %q, %q", c.name, why, command, err, c.why, c.command)
		}
	}
}

func waitUntil(t *testing.T, event string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("not within 30 s: %s", event)
}

func runs(t *testing.T, program string) bool {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, exe := range all {
		if target, err := os.Readlink(exe); err == nil && target == program {
			return true
		}
	}
	return false
}
