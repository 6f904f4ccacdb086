//go:build linux

package takeover

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		// Not skipped but not there: go test says "no tests to run".
		_ = flag.Set("test.run", "^$")
		os.Exit(m.Run())
	}
	if err := apiserver.Assets(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lab.Main(m)
}
