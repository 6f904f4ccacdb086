//go:build linux

package lab

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnprivileged(t *testing.T) {
	if userNamespace(t) {
		t.Skip("this whole run is unprivileged already")
	}
	const nobody = 65534
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestDoStaysAndComesBack$", "-test.v")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:  unix.SIGKILL,
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
	}
	out, err := cmd.CombinedOutput()
	if bytes.Contains(out, []byte("allow unprivileged user namespaces")) {
		t.Skipf("the kernel refuses: %s", out)
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestDoStaysAndComesBack")) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// userNamespace reports whether this user namespace has only one user.
func userNamespace(t *testing.T) bool {
	t.Helper()
	m, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(m))
	return len(fields) != 3 || fields[2] != "4294967295"
}

func TestExitCodeIsThatOfTheTests(t *testing.T) {
	for flag, want := range map[string]int{"-test.run=^$": 0, "-test.nonsense": 2} {
		cmd := exec.Command("/proc/self/exe", flag)
		_ = cmd.Run() // the exit code is checked below
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: exit code %d, want %d", flag, got, want)
		}
	}
}
