//go:build linux

package endurance

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) {
	if hardship := os.Getenv(hardshipVar); hardship != "" {
		fmt.Fprintln(os.Stderr, become(hardship, os.Args[1:]))
		os.Exit(125)
	}
	harness.Main(m, apiserver.Assets)
}
