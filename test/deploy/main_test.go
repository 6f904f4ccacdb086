//go:build linux

package deploy

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/harness"
)

// toolsVar names the folder with the programs of hack/test-tools.sh.
const toolsVar = "TEST_TOOLS"

var update = flag.Bool("update", false, "write the files that are made from others")

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == confined {
		confine(os.Args[2:])
	}
	harness.Main(m, prepare)
}

// prepare verifies that the programs exist.
func prepare() error {
	_ = flag.Set("test.parallel", "6") // most tests wait for programs
	if err := apiserver.Assets(); err != nil {
		return err
	}
	for _, name := range []string{"helm", "kubectl", "prometheus", "promtool"} {
		if _, err := os.Stat(tool(name)); err != nil {
			return fmt.Errorf("run `hack/test-tools.sh .cache/test-tools`, or name the folder with the programs in %s: %w", toolsVar, err)
		}
	}
	return nil
}

func tool(name string) string {
	dir := os.Getenv(toolsVar)
	if dir == "" {
		dir = project(".cache/test-tools")
	}
	return filepath.Join(dir, name)
}

// project is a path of this project.
func project(path string) string {
	abs, err := filepath.Abs(filepath.Join("../..", path))
	if err != nil {
		panic(err) // there is no current folder
	}
	return abs
}

// run runs a program and returns its standard output.
func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := try(t, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// try is run, with the error told.
func try(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // with nobody's settings in it
	var said errorText
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%v: %w\n%s%s", argv, err, out, said)
	}
	return string(out), nil
}

type errorText []byte

func (e *errorText) Write(b []byte) (int, error) {
	*e = append(*e, b...)
	return len(b), nil
}
