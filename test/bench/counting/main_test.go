//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// A small run has a row for each case.
func TestCounting(t *testing.T) {
	for _, backend := range []placement{podOf, outside} {
		var out strings.Builder
		if err := run(2, 4, backend, &out); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "\n"); n != 6 {
			t.Errorf("got\n%s", out.String())
		}
	}
}
