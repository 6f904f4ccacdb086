//go:build linux

package direct

import (
	"testing"

	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
