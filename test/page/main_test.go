//go:build linux

package page

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, prepare) }

// browsers are the names of the program in distributions, headless first.
func browsers() []string { return []string{"chromium-headless-shell", "chromium", "chromium-browser"} }

func prepare() error {
	_, err := chromium()
	return err
}

func chromium() (string, error) {
	for _, name := range browsers() {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("run `make setup-rest`, which installs Chromium: none of %v is there", browsers())
}
