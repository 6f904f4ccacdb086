//go:build linux

package harness

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Main runs the tests of a package in new namespaces and exits, like lab.Main. With -short it
// runs no test. An error of a check, such as a missing program, ends the run before the first
// test.
func Main(m *testing.M, checks ...func() error) {
	flag.Parse()
	if testing.Short() {
		// Exclude the tests instead of skipping them: go test prints "no tests to run".
		_ = flag.Set("test.run", "^$")
		os.Exit(m.Run())
	}
	for _, check := range checks {
		if err := check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	RaisePriority()
	lab.Main(m)
}

// priority is the nice value of tests and of the programs that they start.
const priority = -10

// RaisePriority raises the scheduling priority of this thread, and so of the process that
// lab.Main or lab.Enter starts: tests bound how long changes and repairs take, which must not depend on
// other load. Without the right to do so, the priority stays.
func RaisePriority() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, priority)
}

// Eventually calls try until it returns no error, and fails the test after limit.
func Eventually(t lab.T, limit time.Duration, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("after %v: %v", limit, err)
}

// Program returns the path of Sluice, which the first call builds. It is in /run, which is
// removed with this process.
var Program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("/run", "program-")
	if err != nil {
		return "", err
	}
	return Build(dir)
})

// Build builds Sluice into a folder and returns the path of the program.
func Build(dir string) (string, error) {
	path := filepath.Join(dir, "sluice")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/sluice-proxy/sluice/cmd/sluice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build sluice: %w\n%s", err, out)
	}
	return path, nil
}
