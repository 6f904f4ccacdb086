//go:build linux

package rules

import (
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }
