//go:build linux

package resolver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/test/harness"
)

// toolsVar is the environment variable with the folder of coredns.
const toolsVar = "TEST_TOOLS"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == resolveArg {
		resolveNames(os.Args[2:])
		return
	}
	harness.Main(m, prepare)
}

// prepare verifies that the programs exist.
func prepare() error {
	if _, err := os.Stat(coreDNS()); err != nil {
		return fmt.Errorf("run `make test-tools`, or name the folder with coredns in %s: %w", toolsVar, err)
	}
	for _, compiler := range []string{"gcc", "musl-gcc"} {
		if _, err := exec.LookPath(compiler); err != nil {
			return fmt.Errorf("run `make setup-rest`, which installs a C compiler: %w", err)
		}
	}
	return nil
}

func coreDNS() string {
	dir := os.Getenv(toolsVar)
	if dir == "" {
		dir = filepath.Join("..", "..", ".cache", "test-tools")
	}
	return filepath.Join(dir, "coredns")
}

// resolver is a program that resolves names by a resolver, with the arguments of testdata/resolve.c.
type resolver struct {
	name string
	argv []string
}

// resolvers returns the programs, which the first call compiles.
var resolvers = sync.OnceValues(func() ([]resolver, error) {
	dir, err := os.MkdirTemp("/run", "resolvers-")
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	all := []resolver{{"go", []string{self, resolveArg}}}
	for name, compiler := range map[string][]string{"glibc": {"gcc"}, "musl": {"musl-gcc", "-static"}} {
		path := filepath.Join(dir, name)
		argv := append(compiler, "-std=c99", "-Wall", "-Werror", "-o", path, "testdata/resolve.c")
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w\n%s", argv, err, out)
		}
		all = append(all, resolver{name, []string{path}})
	}
	return all, nil
})
