//go:build linux

package hostile

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		fmt.Fprintln(os.Stderr, play(role))
		os.Exit(1)
	}
	flag.Parse()
	if testing.Short() {
		// Exclude the tests instead of skipping them: go test says "no tests to run".
		_ = flag.Set("test.run", "^$")
		os.Exit(m.Run())
	}
	// Most attacks wait more than they work, so that more of them than there are
	// cores can run at a time.
	_ = flag.Set("test.parallel", "3")
	lab.Main(m)
}
