//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// TestMeasure measures a small size: every change is written, and the restart adopts all entries.
func TestMeasure(t *testing.T) {
	r, err := measure(options{plane: "nftables", child: 100, changes: 20, profile: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if r.Cold.Steps < 100*(1+endpoints) {
		t.Errorf("the cold load took %d steps, want at least one for each Service and endpoint", r.Cold.Steps)
	}
	for kind, got := range map[string]changeStats{
		"replace": r.Replace, "grow": r.Grow, "shrink": r.Shrink, "add": r.Add, "delete": r.Delete,
	} {
		if got.P50 <= 0 || got.P99 < got.P50 || got.Allocs <= 0 || got.Bytes <= 0 {
			t.Errorf("%s: %+v", kind, got)
		}
	}
	if r.Heap == 0 || r.PeakRSS < r.Heap {
		t.Errorf("heap %d, peak RSS %d", r.Heap, r.PeakRSS)
	}
	if r.Files < 3 || r.Files > 50 {
		t.Errorf("%d file descriptors", r.Files)
	}
	var table bytes.Buffer
	if err := printSizes(&table, []int{100}, [][]result{{r}}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(table.String()), "\n"); len(lines) != 2+len(rows())+2 {
		t.Errorf("the table has %d lines:\n%s", len(lines), table.String())
	}
}

// In mode userspace a Service has a socket, and a restart opens it again.
func TestMeasureUserspace(t *testing.T) {
	for _, name := range []string{"userspace", "userspace-rules"} {
		r, err := measure(options{plane: name, child: 100, changes: 10, dir: t.TempDir()})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r.Files < 100 || r.Files > 150 || r.Cold.Steps < 200 || r.Adopt.Steps < 200 ||
			r.Replace.P50 <= 0 || r.Add.P50 <= 0 {
			t.Errorf("%s: %+v, want a socket and a balancer for each of 100 Services, at the start and at a restart", name, r)
		}
	}
}
