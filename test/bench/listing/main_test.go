//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/bench/fetch"
	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, apiserver.Assets) }

// Each way to fetch everything works against a real API server, and has a row.
func TestListing(t *testing.T) {
	o, err := parse(strings.Fields("-sizes 600 -clients 2 -rounds 1"), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := measure(o, &out); err != nil {
		t.Fatal(err)
	}
	for _, m := range fetch.Methods() {
		if !strings.Contains(out.String(), "| "+m.Name+" | 2 | ") {
			t.Errorf("there is no row %q", m.Name)
		}
	}
	t.Log(out.String())
}
