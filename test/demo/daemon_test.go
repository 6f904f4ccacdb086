//go:build linux

package main

import (
	"fmt"
	"testing"
)

const startLine = `time=2026-01-02T03:04:05Z level=INFO msg=Synced services=6 steps=212 compile=87.2µs apply=10.3ms cause=start`

func TestParseSynced(t *testing.T) {
	for _, c := range []struct {
		line string
		want synced
		ok   bool
	}{
		{startLine, synced{services: 6, steps: 212}, true},
		{"level=INFO msg=Synced services=6 steps=0 cause=start", synced{services: 6}, true},
		{"level=DEBUG msg=Synced services=6 steps=4 full=false", synced{}, false},
		{"level=INFO msg=Synced services=6 cause=start", synced{}, false},
		{"level=INFO msg=Starting version=v1 mode=nftables", synced{}, false},
		{"", synced{}, false},
	} {
		got, ok := parseSynced(c.line)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%q: %+v %t, want %+v %t", c.line, got, ok, c.want, c.ok)
		}
	}
}

// Output comes in pieces that know nothing of lines.
func TestJournal(t *testing.T) {
	j := &journal{}
	for _, piece := range []string{"one\ntw", "o\n", "", startLine[:20]} {
		if n, err := j.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatalf("wrote %d: %v", n, err)
		}
	}
	if _, ok := j.synced(); ok {
		t.Error("half a line was believed")
	}
	fmt.Fprint(j, startLine[20:], "\n", "later\n")
	s, ok := j.synced()
	if !ok || s.steps != 212 || s.when.IsZero() {
		t.Errorf("found %+v %t", s, ok)
	}
	fmt.Fprint(j, "level=WARN msg=careful\n")
	if got := j.warnings(); len(got) != 1 || got[0] != "level=WARN msg=careful" {
		t.Errorf("warnings: %q", got)
	}
	for n, want := range map[int]string{0: "", 1: "level=WARN msg=careful", 9: "one\ntwo\n" + startLine + "\nlater\nlevel=WARN msg=careful"} {
		if got := j.last(n); got != want {
			t.Errorf("last %d: %q", n, got)
		}
	}
}
