//go:build linux

package page

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, prepare) }

// prepare verifies that there is a browser. Only Ubuntu may lack one: its Chromium is a snap, which does not run in the
// namespaces of a test.
func prepare() error {
	if path, err := chromium(); path == "" && !isUbuntu() {
		return fmt.Errorf("run `make setup-rest`, which installs Chromium: %w", err)
	}
	return nil
}

// chromium returns the path of a browser.
func chromium() (path string, err error) {
	for _, name := range []string{"chromium-headless-shell", "chromium", "google-chrome"} {
		if path, err = exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", err
}

func isUbuntu() bool {
	release, _ := os.ReadFile("/etc/os-release") // without one it is not Ubuntu
	return bytes.Contains(release, []byte("\nID=ubuntu\n"))
}
