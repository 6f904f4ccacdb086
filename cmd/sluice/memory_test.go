package main

import (
	"errors"
	"os"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/proxy"
)

// growth returns how much the heap may grow at present.
func growth() int {
	now := debug.SetGCPercent(100)
	debug.SetGCPercent(now)
	return now
}

// The heap is kept small until everything was written once; from then on changes cost less.
func TestSaveMemory(t *testing.T) {
	t.Setenv("GOGC", "") // restored afterwards
	if err := os.Unsetenv("GOGC"); err != nil {
		t.Fatal(err)
	}
	before := growth()
	t.Cleanup(func() { debug.SetGCPercent(before) })
	synctest.Test(t, testSaveMemory)
}

func testSaveMemory(t *testing.T) {
	synced := saveMemory()
	for _, step := range []struct {
		tell proxy.Sync
		want int
	}{
		{proxy.Sync{Err: errors.New("no")}, mostPercent},
		{proxy.Sync{}, steadyPercent},
		{proxy.Sync{Err: errors.New("no")}, steadyPercent},
	} {
		synced(step.tell)
		time.Sleep(20 * lookPeriod) // the heap of a test is small
		synctest.Wait()
		if got := growth(); got != step.want {
			t.Errorf("after %+v the heap may grow by %d %%, want %d", step.tell, got, step.want)
		}
	}
}

// GOGC in the environment takes precedence.
func TestGOGCWins(t *testing.T) {
	t.Setenv("GOGC", "200")
	before := growth()
	if saveMemory() != nil || growth() != before {
		t.Error("GOGC was overruled")
	}
}

func TestPercent(t *testing.T) {
	for live, want := range map[uint64]int{
		0: mostPercent, 1 << 20: mostPercent, 3 << 20: 300, 9 << 20: 100, 18 << 20: 50,
		41 << 20: leastPercent, 1 << 30: leastPercent,
	} {
		if got := percent(live); got != want {
			t.Errorf("a heap of %d MB may grow by %d %%, want %d", live>>20, got, want)
		}
	}
}
