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
	if restriction := os.Getenv(restrictionVar); restriction != "" {
		fmt.Fprintln(os.Stderr, runRestricted(restriction, os.Args[1:]))
		os.Exit(125)
	}
	harness.Main(m, apiserver.Assets)
}
