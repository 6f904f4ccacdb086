//go:build linux

package apiserver

import (
	"testing"

	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, Assets) }
