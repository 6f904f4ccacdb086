package kerneltest

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// roleVar is the environment variable with the role of a copy of the test program.
const roleVar = "SLUICE_TEST_ROLE"

// Role returns the role of this process if Child started it, and "" if it should run tests. Call it from TestMain.
func Role() string { return os.Getenv(roleVar) }

// Child runs a copy of this test program in a role, in a network namespace, and returns the first line that it prints.
// The process is killed with the test. attr may be nil.
func Child(t testing.TB, netns int, role string, attr *syscall.SysProcAttr) (cmd *exec.Cmd, line string) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe")
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), roleVar+"="+role), attr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	Do(t, netns, cmd.Start) // the child is in the namespace of the thread
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the process in role %q prints %q: %v", role, line, err)
	}
	return cmd, strings.TrimSpace(line)
}

// Unprivileged is the user and group of processes without privileges.
const Unprivileged = 65534

// AsUnprivileged returns the attributes of a process without privileges. It skips the test if root is the only user.
func AsUnprivileged(t testing.TB) *syscall.SysProcAttr {
	t.Helper()
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	if f := strings.Fields(string(b)); len(f) == 3 && f[2] == "1" {
		t.Skip("the user namespace of this process has one user only")
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Unprivileged, Gid: Unprivileged}}
}
