//go:build linux

package hostile

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(intruderVar); socket != "" {
		if err := runIntruder(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	harness.Main(m, func() error {
		// Most attacks mostly wait, so more of them than there are cores can run at the same time.
		return flag.Set("test.parallel", "3")
	})
}
