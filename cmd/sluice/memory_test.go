package main

import (
	"errors"
	"os"
	"runtime/debug"
	"testing"

	"github.com/sluice-proxy/sluice/internal/proxy"
)

// percent returns how much the heap may grow at present.
func percent() int {
	now := debug.SetGCPercent(100)
	debug.SetGCPercent(now)
	return now
}

// The heap is kept small until everything was written once; from then on changes
// cost less.
func TestSaveMemory(t *testing.T) {
	t.Setenv("GOGC", "") // restored afterwards
	if err := os.Unsetenv("GOGC"); err != nil {
		t.Fatal(err)
	}
	before := percent()
	t.Cleanup(func() { debug.SetGCPercent(before) })
	synced := saveMemory()
	for _, step := range []struct {
		tell proxy.Sync
		want int
	}{
		{proxy.Sync{Err: errors.New("no")}, loadingPercent},
		{proxy.Sync{}, steadyPercent},
		{proxy.Sync{Err: errors.New("no")}, steadyPercent},
	} {
		synced(step.tell)
		if got := percent(); got != step.want {
			t.Errorf("after %+v the heap may grow by %d %%, want %d", step.tell, got, step.want)
		}
	}
}

// Who sets GOGC gets what it says.
func TestGOGCWins(t *testing.T) {
	t.Setenv("GOGC", "200")
	before := percent()
	if saveMemory() != nil || percent() != before {
		t.Error("GOGC was overruled")
	}
}
