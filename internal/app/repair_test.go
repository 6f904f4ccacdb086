package app

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/testing/texttest"
)

// fakeLoop is a loop that records the time and cause of each comparison. A comparison takes
// some time, which counts as CPU time unless idle is set, and has some steps.
type fakeLoop struct {
	mu    sync.Mutex
	at    []time.Time
	why   []proxy.Cause
	takes time.Duration
	steps int
	idle  bool          // comparisons wait, and use no CPU time
	used  time.Duration // CPU time
	guard *repairs
}

// setComparison sets the duration and the steps of comparisons from now on.
func (c *fakeLoop) setComparison(takes time.Duration, steps int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes, c.steps = takes, steps
}

func (c *fakeLoop) Compare(_ context.Context, why proxy.Cause) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.why = append(c.at, time.Now()), append(c.why, why)
	s := proxy.Sync{Cause: why, Began: time.Now(), Apply: c.takes, Steps: c.steps}
	time.AfterFunc(s.Apply, func() {
		c.mu.Lock()
		if !c.idle {
			c.used += s.Apply
		}
		c.mu.Unlock()
		c.guard.observe(s)
	})
	return nil
}

func (c *fakeLoop) cpu() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// times returns the times of the comparisons.
func (c *fakeLoop) times() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.at)
}

// causes returns the causes of the comparisons.
func (c *fakeLoop) causes() []proxy.Cause {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.why)
}

// startRepairs runs repairs with a fakeLoop.
func startRepairs(t *testing.T) (*repairs, *fakeLoop, *texttest.Buffer) {
	t.Helper()
	loop, log := &fakeLoop{takes: 20 * time.Millisecond}, &texttest.Buffer{}
	g := newRepairs(slog.New(slog.NewTextHandler(log, nil)), loop.cpu)
	g.loop, loop.guard = loop, g
	runUntilEnd(t, "the repairs", g.run)
	return g, loop, log
}

// runUntilEnd runs something until the test ends, and then waits for it.
func runUntilEnd(t *testing.T, what string, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s ended with: %v", what, err)
		}
	})
}

func TestAnEditIsRepairedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, loop, log := startRepairs(t)
		time.Sleep(time.Minute)
		began := time.Now()
		g.add(plane.Edit{What: "chain, rule", By: "nft (thread 812)"})
		synctest.Wait()
		if len(loop.times()) != 1 || !loop.times()[0].Equal(began) || loop.causes()[0] != proxy.ForeignEdit {
			t.Errorf("compared at %v because of %v, want once, at once", loop.times(), loop.causes())
		}
		text := log.Take()
		for _, want := range []string{"chain, rule", "nft (thread 812)"} {
			if !strings.Contains(text, want) {
				t.Errorf("the log lacks %q:\n%s", want, text)
			}
		}
		time.Sleep(2 * calmAfter)
		synctest.Wait()
		if text := log.Take(); text != "" {
			t.Errorf("the end of a single repaired edit is logged:\n%s", text)
		}
	})
}

// However often another program changes our rules, repairs take at most a fifth of a CPU and
// a second in advance, and the number of log messages is bounded.
func TestRepairsArePacedByTheirCost(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			g, loop, log := startRepairs(t)
			const long = 20 * time.Second
			edits := int(long / every)
			for range edits {
				g.add(plane.Edit{What: "table", By: "other"})
				time.Sleep(every)
			}
			synctest.Wait()
			want := min(edits, int((repairBurst+long/repairShare)/(20*time.Millisecond)))
			if n := len(loop.times()); n < want-1 || n > want+1 {
				t.Errorf("an edit every %v: %d repairs in %v, want %d", every, n, long, want)
			}
			text := log.Take()
			if n := strings.Count(text, "\n"); n != maxLogged || strings.Count(text, "keeps changing") != 1 {
				t.Errorf("an edit every %v: logged %d lines, want %d, one of them that the edits continue:\n%s", every, n, maxLogged, text)
			}
			// The end of the edits is logged once, and the next edit is repaired at once again.
			time.Sleep(2 * calmAfter)
			synctest.Wait()
			if text := log.Take(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "No program changes our rules any more") {
				t.Errorf("after the end of the edits the log is %q", text)
			}
			before := len(loop.times())
			g.add(plane.Edit{What: "table", By: "other"})
			synctest.Wait()
			if len(loop.times()) != before+1 {
				t.Error("an edit after a long pause is not repaired at once")
			}
		})
	}
}

// The time without edits before a repair earns no more than the second in advance.
func TestAnExpensiveRepairDelaysTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, loop, _ := startRepairs(t)
		const takes = 10 * time.Second
		loop.setComparison(takes, 0)
		time.Sleep(minPeriod / 2)
		began := time.Now()
		for range 2 {
			g.add(plane.Edit{What: "table"})
			time.Sleep(takes)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		at := loop.times()
		if want := repairShare * (takes - repairBurst); len(at) != 2 || at[1].Sub(began) != want {
			t.Errorf("repairs at %v, want one at %v and one %v later", at, began, want)
		}
	})
}

// Time that a comparison spends waiting, for example for a lock, does not count as cost.
func TestWaitingDoesNotCountAsCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, loop, _ := startRepairs(t)
		const takes = 5 * time.Second
		loop.setComparison(takes, 0)
		loop.mu.Lock()
		loop.idle = true
		loop.mu.Unlock()
		for range 2 {
			g.add(plane.Edit{What: "table"})
			synctest.Wait()
		}
		time.Sleep(takes)
		synctest.Wait()
		if n := len(loop.times()); n != 2 {
			t.Errorf("%d comparisons, want the second at the end of the first", n)
		}
	})
}

// Comparisons for possible edits take at most a hundredth of a CPU, and more while another
// program is known to change rules.
func TestPossibleEdits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, loop, log := startRepairs(t)
		const takes = 20 * time.Millisecond
		loop.setComparison(takes, 0)
		possible := func(pause time.Duration, why proxy.Cause) {
			t.Helper()
			time.Sleep(takes) // the last comparison ends
			synctest.Wait()
			before, began := len(loop.times()), time.Now()
			g.add(plane.Edit{What: "chains just written", Possible: true})
			time.Sleep(time.Hour / 10)
			synctest.Wait()
			if len(loop.times()) <= before {
				t.Fatal("never compared")
			}
			if at, because := loop.times()[before].Sub(began), loop.causes()[before]; at != pause || because != why {
				t.Errorf("compared after %v because of %q, want after %v because of %q", at, because, pause, why)
			}
		}
		possible(0, proxy.Period)
		time.Sleep(time.Hour)
		g.add(plane.Edit{What: "chains just written", Possible: true})
		synctest.Wait()
		possible(verifyPause*takes, proxy.Period)
		if text := log.Take(); text != "" {
			t.Errorf("logged without a difference:\n%s", text)
		}
		time.Sleep(time.Hour)
		g.add(plane.Edit{What: "table"})
		synctest.Wait()
		possible(contestPause*takes, proxy.Period)

		time.Sleep(time.Hour)
		_ = log.Take()
		loop.setComparison(takes, 7)
		g.add(plane.Edit{What: "chains just written", Possible: true})
		time.Sleep(takes)
		synctest.Wait()
		if text := log.Take(); !strings.Contains(text, "without a notification; 7 steps") {
			t.Errorf("the difference is not logged:\n%s", text)
		}
	})
}

// An edit is logged once, also if a periodic comparison that had already begun repairs it.
func TestAnEditDuringAPeriodicComparisonIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, loop, log := startRepairs(t)
		time.Sleep(time.Hour)
		synctest.Wait()
		loop.setComparison(20*time.Millisecond, 7)
		g.add(plane.Edit{What: "chains just written", Possible: true})
		time.Sleep(5 * time.Millisecond)
		g.add(plane.Edit{What: "table"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if text := log.Take(); strings.Count(text, "Another program changed our rules") != 1 || !strings.Contains(text, "what=table") {
			t.Errorf("the edit is not logged once:\n%s", text)
		}
	})
}

// An unclear edit is compared as soon as any other, and logged only if something was repaired, with or without a
// periodic comparison that had already begun.
func TestAnUnclearEdit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		steps  int
		during bool // a periodic comparison
		want   string
	}{
		{"of other programs", 0, false, ""},
		{"of our rules", 7, false, "rules in nat; 7 steps repaired them"},
		{"during a comparison", 7, true, "rules in nat; 7 steps repaired them"},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, loop, log := startRepairs(t)
			time.Sleep(time.Minute)
			const takes = 20 * time.Millisecond
			loop.setComparison(takes, tt.steps)
			if tt.during {
				g.add(plane.Edit{What: "chains just written", Possible: true})
				time.Sleep(takes / 2)
				loop.setComparison(takes, 0)
			}
			began := time.Now()
			g.add(plane.Edit{What: "rules in nat", Unclear: true})
			time.Sleep(takes + takes/2)
			synctest.Wait()
			at := slices.Index(loop.causes(), proxy.ForeignEdit)
			if at < 0 || !loop.times()[at].Equal(began) {
				t.Errorf("%s: compared at %v because of %v, want at once", tt.name, loop.times(), loop.causes())
			}
			lines := strings.Count(log.String(), "Another program changed our rules")
			if !strings.Contains(log.String(), tt.want) || lines != min(tt.steps, 1) {
				t.Errorf("%s: the log is %q, want %q once", tt.name, log, tt.want)
			}
		})
	}
}

// An edit that is reported when the comparison ends is logged as reported.
func TestAnEditAtTheEndOfAPeriodicComparison(t *testing.T) {
	log := &texttest.Buffer{}
	g := newRepairs(slog.New(slog.NewTextHandler(log, nil)), nil)
	g.add(plane.Edit{What: "table"})
	g.logRepair(proxy.Sync{Steps: 7})
	if text := log.Take(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "what=table") || !g.edited {
		t.Errorf("repair due: %t, logged:\n%s", g.edited, text)
	}
}

func TestPeriodicComparisons(t *testing.T) {
	for takes, want := range map[time.Duration]int{20 * time.Millisecond: 30, 2 * time.Second: 9, time.Minute: 5} {
		synctest.Test(t, func(t *testing.T) {
			_, loop, log := startRepairs(t)
			loop.setComparison(takes, 0)
			time.Sleep(5*time.Hour + 5*time.Minute)
			synctest.Wait()
			if len(loop.causes()) != want || loop.causes()[0] != proxy.Period {
				t.Errorf("a comparison takes %v: compared because of %v, want %d", takes, loop.causes(), want)
			}
			if text := log.Take(); text != "" {
				t.Errorf("logged on a quiet node:\n%s", text)
			}
		})
	}
}
