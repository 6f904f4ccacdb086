//go:build linux

package endurance

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) {
	if hardship := os.Getenv(hardshipVar); hardship != "" {
		fmt.Fprintln(os.Stderr, become(hardship, os.Args[1:]))
		os.Exit(125)
	}
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
