//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, withoutSignals) }

// A short run measures every way: programs decide exactly the connections of mode ebpf, and no cell of a table is
// empty.
func TestRun(t *testing.T) {
	kerneltest.NeedPrograms(t)
	o, err := parse(strings.Fields("-sizes 3,10 -rounds 2 -calls 5 -stream 100000 -changes 5"), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(o, &out); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	var titles []string
	for text := range strings.Lines(out.String()) {
		cells := strings.Split(strings.TrimSuffix(text, " |\n"), " | ")
		if !strings.HasPrefix(text, "| ") || strings.HasPrefix(text, "| ---") || strings.HasPrefix(text, "| — ") {
			continue
		}
		titles = append(titles, strings.TrimPrefix(cells[0], "| "))
		for i, cell := range cells[1:] {
			first := i == 0 && cells[0] == "| bytes per further Service"
			if !first && (cell == "" || strings.HasPrefix(cell, "0.00")) {
				t.Errorf("cell %d is %q: %s", i, cell, text)
			}
		}
	}
	traffic := []string{
		"connect(), p50, µs", "socket(), connect(), close(), p50, µs", "connect(), first request and response, p50, µs",
		"TCP request and response, p50, µs", "TCP stream, MB/s",
		"UDP request and response, connected, p50, µs", "UDP request and response, not connected, p50, µs",
	}
	want := slices.Concat([]string{"3 Services"}, traffic, []string{"10 Services"}, traffic, []string{
		"Services", "first load, ms", "an endpoint replaced, p50, µs", "an endpoint replaced, p90, µs",
		"an endpoint replaced, p99, µs",
		"maps of Services, KB", "maps that programs and other parts write, KB", "bytes per further Service",
	})
	if !slices.Equal(titles, want) {
		t.Errorf("got the lines\n%s\nwant\n%s", strings.Join(titles, "\n"), strings.Join(want, "\n"))
	}
}
