//go:build linux

package harness

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// Main runs the tests of a package in new namespaces and exits, like lab.Main. With -short it runs no test. An error of
// a check, such as a missing program, ends the run before the first test.
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
	lab.Main(m)
}

// Eventually calls try until it returns no error, and fails the test after limit, which suits a fast machine.
func Eventually(t lab.T, limit time.Duration, try func() error) {
	t.Helper()
	var err error
	limit = machine.Scale(limit)
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("after %v: %v", limit, err)
}

// Program returns the path of Sluice: SLUICE in the environment, or else a program that the first call builds. That
// one is in /run, which is removed with this process.
var Program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("/run", "program-")
	if err != nil {
		return "", err
	}
	return ProgramIn(dir)
})

// ProgramIn is Program for tests without a /run of their own: it builds in dir, at each call.
func ProgramIn(dir string) (string, error) {
	if path := os.Getenv("SLUICE"); path != "" {
		return path, runs(path)
	}
	path := filepath.Join(dir, "sluice")
	return path, Build(path, "github.com/sluice-proxy/sluice/cmd/sluice")
}

// runs returns an error unless path is absolute and is a program that prints its version.
func runs(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("SLUICE=%s: want an absolute path", path)
	}
	if out, err := exec.Command(path, "--version").CombinedOutput(); err != nil {
		return fmt.Errorf("SLUICE=%s: run it with --version: %w\n%s", path, err, out)
	}
	return nil
}

// Build builds the program of a package, as `make build` does, so that it uses the same compiled packages. It runs
// without the raised priority of tests that measure.
func Build(path, pkg string) error {
	build := exec.Command("nice", "-n", strconv.Itoa(-lab.Priority), "go", "build", "-trimpath", "-o", path, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}
