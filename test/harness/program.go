//go:build linux

package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

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
