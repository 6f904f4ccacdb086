//go:build linux

package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Programs and sockets of clients are in the cgroup of their host. The cgroup of a pod is below the cgroup of its
// node. All are removed in the end.
func TestClientsAreInCgroups(t *testing.T) {
	if !HasCgroups() {
		t.Skip("cgroup v2 is not there for this user")
	}
	var dirs []string
	t.Run("with cgroups", func(t *testing.T) {
		s := newTestLab(t, Options{Cgroups: true})
		if got, want := filepath.Dir(s.near.Cgroup()), s.NodeA.Cgroup(); got != want {
			t.Errorf("the cgroup of a pod is in %s, want %s", got, want)
		}
		for _, h := range []*Host{s.NodeA, s.near} {
			var out bytes.Buffer
			cmd := exec.Command("sh", "-c", "cat /proc/self/cgroup; readlink /proc/self/ns/net")
			cmd.Stdout = &out
			wait, err := h.StartClient(cmd)
			if err != nil {
				t.Fatal(err)
			}
			if err := wait(); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), "/"+filepath.Base(h.Cgroup())+"\n") {
				t.Errorf("a program on %s is in\n%swant %s", h.Name(), &out, h.Cgroup())
			}
			if ns := h.MustRun("readlink", "/proc/self/ns/net"); !strings.HasSuffix(out.String(), ns) {
				t.Errorf("a program on %s is in\n%swant network namespace %s", h.Name(), &out, ns)
			}
			dirs = append(dirs, h.Cgroup())
		}
		if _, err := s.near.StartClient(exec.Command("sleep", "1000")); err != nil { // it is killed
			t.Fatal(err)
		}
	})
	for _, dir := range dirs {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("after the test there is %s: %v", dir, err)
		}
	}
}

// The process that waits in Enter removes the cgroup of the one inside, even if that is killed.
func TestTheCgroupOfAProcessIsRemoved(t *testing.T) {
	if !HasCgroups() {
		t.Skip("cgroup v2 is not there for this user")
	}
	if os.Getenv("LAB_TEST_CGROUP") != "" {
		fmt.Println("cgroup", filepath.Dir(Cgroup(t)))
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestTheCgroupOfAProcessIsRemoved$")
	cmd.Env = append(os.Environ(), "LAB_TEST_CGROUP=1")
	out, _ := cmd.CombinedOutput() // it is killed
	m := regexp.MustCompile(`cgroup (/\S+)`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("the process made no cgroup: %s", out)
	}
	if _, err := os.Stat(string(m[1])); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", m[1], err)
	}
}
