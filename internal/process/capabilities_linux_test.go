package process

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// printCapabilities makes the test program print its capabilities.
const printCapabilities = "SLUICE_TEST_PRINT_CAPABILITIES"

// The effective capabilities are those that the process has kept.
func TestCapabilities(t *testing.T) {
	if os.Getenv(printCapabilities) != "" {
		names, err := Capabilities()
		if err != nil {
			t.Fatal(err)
		}
		t.Log("has: " + strings.Join(names, " ") + ".")
		return
	}
	kerneltest.Namespace(t) // skips where this process cannot be root
	all, err := Capabilities()
	if err != nil || !slices.Contains(all, "CAP_NET_ADMIN") || !slices.Contains(all, "CAP_NET_RAW") {
		t.Errorf("root has %v, %v", all, err)
	}
	drop := []string{"--bounding-set=-all,+net_raw", "--inh-caps=-all,+net_raw"}
	cmd := exec.Command("setpriv", append(drop, "/proc/self/exe", "-test.run=^TestCapabilities$", "-test.v")...)
	cmd.Args[slices.Index(cmd.Args, "/proc/self/exe")], _ = os.Executable()
	cmd.Env = append(os.Environ(), printCapabilities+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "has: CAP_NET_RAW.") {
		t.Errorf("a process with CAP_NET_RAW alone: %v\n%s", err, out)
	}
}
