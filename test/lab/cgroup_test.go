//go:build linux

package lab

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Programs and sockets of clients are in the cgroup of their host. The cgroup of a pod is below the cgroup of its
// node. All are removed in the end.
func TestClientsAreInCgroups(t *testing.T) {
	if root, err := cgroupRoot(); err != nil || unix.Access(root, unix.W_OK) != nil {
		t.Skipf("cgroup v2 is not there for this user: %v", err)
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
