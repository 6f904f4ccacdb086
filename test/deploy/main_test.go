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

// toolsVar is the environment variable with the folder of the programs of hack/test-tools.sh.
const toolsVar = "TEST_TOOLS"

var update = flag.Bool("update", false, "write the generated files")

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == confinedArg {
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
			return fmt.Errorf("run `make test-tools`, or name the folder with the programs in %s: %w", toolsVar, err)
		}
	}
	return nil
}

func tool(name string) string {
	dir := os.Getenv(toolsVar)
	if dir == "" {
		dir = projectPath(".cache/test-tools")
	}
	return filepath.Join(dir, name)
}

// projectPath returns the absolute path of a file of this project.
func projectPath(path string) string {
	abs, err := filepath.Abs(filepath.Join("../..", path))
	if err != nil {
		panic(err) // there is no current folder
	}
	return abs
}

// run runs a program and returns its standard output.
func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := runCommand(t, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// runCommand is run with an error instead of a failed test.
func runCommand(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // without user settings
	var stderr errorText
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%v: %w\n%s%s", argv, err, out, stderr)
	}
	return string(out), nil
}

type errorText []byte

func (e *errorText) Write(b []byte) (int, error) {
	*e = append(*e, b...)
	return len(b), nil
}
