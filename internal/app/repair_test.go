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
	"github.com/sluice-proxy/sluice/internal/text/texttest"
)

// compared is a loop that notes when and why everything was compared. Each
// comparison takes a time, which it spends on a CPU, and finds something or not.
type compared struct {
	mu    sync.Mutex
	at    []time.Time
	why   []proxy.Cause
	takes time.Duration
	steps int
	idle  bool          // it waits for others meanwhile
	used  time.Duration // CPU time
	guard *repairs
}

// becomes changes how comparisons are from now on.
func (c *compared) becomes(takes time.Duration, steps int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes, c.steps = takes, steps
}

func (c *compared) Compare(_ context.Context, why proxy.Cause) error {
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

func (c *compared) cpu() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// times returns when that was.
func (c *compared) times() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.at)
}

// causes returns why.
func (c *compared) causes() []proxy.Cause {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.why)
}

func guarded(t *testing.T) (*repairs, *compared, *texttest.Buffer) {
	t.Helper()
	seen, log := &compared{takes: 20 * time.Millisecond}, &texttest.Buffer{}
	g := newRepairs(slog.New(slog.NewTextHandler(log, nil)), seen.cpu)
	g.loop, seen.guard = seen, g
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the guard ended with: %v", err)
		}
	})
	return g, seen, log
}

func TestAnEditIsPutRightAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, seen, log := guarded(t)
		time.Sleep(time.Minute)
		began := time.Now()
		g.add(plane.Edit{What: "chain, rule", By: "nft (thread 812)"})
		synctest.Wait()
		if len(seen.times()) != 1 || !seen.times()[0].Equal(began) || seen.causes()[0] != proxy.ForeignEdit {
			t.Errorf("compared at %v because of %v, want once, at once", seen.times(), seen.causes())
		}
		said := log.Take()
		for _, want := range []string{"chain, rule", "nft (thread 812)"} {
			if !strings.Contains(said, want) {
				t.Errorf("the log does not say %q:\n%s", want, said)
			}
		}
		time.Sleep(2 * calmAfter)
		synctest.Wait()
		if said := log.Take(); said != "" {
			t.Errorf("the end of what was put right at once is worth a line:\n%s", said)
		}
	})
}

// However often another program changes our rules, repairs take no more than a
// fifth of a CPU, and the program is logged a bounded number of times.
func TestRepairsArePacedByTheirCost(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			g, seen, log := guarded(t)
			const long = 20 * time.Second
			edits := int(long / every)
			for range edits {
				g.add(plane.Edit{What: "table", By: "other"})
				time.Sleep(every)
			}
			synctest.Wait()
			want := min(edits, int(long/(5*20*time.Millisecond))) // each takes a fifth of the time until the next
			if n := len(seen.times()); n < want-1 || n > want+1 {
				t.Errorf("an edit every %v: %d repairs in %v, want %d", every, n, long, want)
			}
			fight := log.Take()
			if n := strings.Count(fight, "\n"); n != maxLogged || strings.Count(fight, "keeps changing") != 1 {
				t.Errorf("an edit every %v: logged %d lines, want %d, of which one that it goes on:\n%s", every, n, maxLogged, fight)
			}
			// When it is over, that is logged once, and all is as before.
			time.Sleep(2 * calmAfter)
			synctest.Wait()
			if said := log.Take(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "No program changes our rules any more") {
				t.Errorf("when it is over it says %q", said)
			}
			before := len(seen.times())
			g.add(plane.Edit{What: "table", By: "other"})
			synctest.Wait()
			if len(seen.times()) != before+1 {
				t.Error("an edit after a long quiet is not put right at once")
			}
		})
	}
}

// The time a comparison waits for others, such as for a lock, costs nothing.
func TestWaitingIsNoCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, seen, _ := guarded(t)
		const takes = 5 * time.Second
		seen.becomes(takes, 0)
		seen.mu.Lock()
		seen.idle = true
		seen.mu.Unlock()
		for range 2 {
			g.add(plane.Edit{What: "table"})
			synctest.Wait()
		}
		time.Sleep(takes)
		synctest.Wait()
		if n := len(seen.times()); n != 2 {
			t.Errorf("%d comparisons, want the second at the end of the first", n)
		}
	})
}

// A possible edit is compared at a hundredth of a CPU, and sooner while another
// program is known to change rules.
func TestPossibleEdits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, seen, log := guarded(t)
		const takes = 20 * time.Millisecond
		seen.becomes(takes, 0)
		possible := func(pause time.Duration, why proxy.Cause) {
			t.Helper()
			time.Sleep(takes) // the last comparison ends
			synctest.Wait()
			before, began := len(seen.times()), time.Now()
			g.add(plane.Edit{What: "chains just written", Possible: true})
			time.Sleep(time.Hour / 10)
			synctest.Wait()
			if len(seen.times()) <= before {
				t.Fatal("never compared")
			}
			if at, because := seen.times()[before].Sub(began), seen.causes()[before]; at != pause || because != why {
				t.Errorf("compared after %v because of %q, want after %v because of %q", at, because, pause, why)
			}
		}
		possible(0, proxy.Period)
		time.Sleep(time.Hour)
		g.add(plane.Edit{What: "chains just written", Possible: true})
		synctest.Wait()
		possible(verifyPause*takes, proxy.Period)
		if said := log.Take(); said != "" {
			t.Errorf("logged though nothing was wrong:\n%s", said)
		}
		time.Sleep(time.Hour)
		g.add(plane.Edit{What: "table"})
		synctest.Wait()
		possible(contestPause*takes, proxy.Period)

		time.Sleep(time.Hour)
		_ = log.Take()
		seen.becomes(takes, 7)
		g.add(plane.Edit{What: "chains just written", Possible: true})
		time.Sleep(takes)
		synctest.Wait()
		if said := log.Take(); !strings.Contains(said, "without a notification; 7 steps") {
			t.Errorf("what was found is not logged:\n%s", said)
		}
	})
}

// An edit is logged once, also if a periodic comparison that had begun repairs it.
func TestAnEditDuringAPeriodicComparisonIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, seen, log := guarded(t)
		time.Sleep(time.Hour)
		synctest.Wait()
		seen.becomes(20*time.Millisecond, 7)
		g.add(plane.Edit{What: "chains just written", Possible: true})
		time.Sleep(5 * time.Millisecond)
		g.add(plane.Edit{What: "table"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if said := log.Take(); strings.Count(said, "Another program changed our rules") != 1 || !strings.Contains(said, "what=table") {
			t.Errorf("the edit is not logged once:\n%s", said)
		}
	})
}

// An edit that is reported at the moment at which the comparison ends is logged as
// reported.
func TestAnEditAtTheEndOfAPeriodicComparison(t *testing.T) {
	log := &texttest.Buffer{}
	g := newRepairs(slog.New(slog.NewTextHandler(log, nil)), nil)
	g.add(plane.Edit{What: "table"})
	g.logRepair(proxy.Sync{Steps: 7})
	if said := log.Take(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "what=table") || !g.edited {
		t.Errorf("repair due: %t, logged:\n%s", g.edited, said)
	}
}

func TestEverythingIsComparedNowAndThen(t *testing.T) {
	for takes, want := range map[time.Duration]int{20 * time.Millisecond: 30, 2 * time.Second: 9, time.Minute: 5} {
		synctest.Test(t, func(t *testing.T) {
			_, seen, log := guarded(t)
			seen.becomes(takes, 0)
			time.Sleep(5*time.Hour + 5*time.Minute)
			synctest.Wait()
			if len(seen.causes()) != want || seen.causes()[0] != proxy.Period {
				t.Errorf("a comparison takes %v: compared because of %v, want %d", takes, seen.causes(), want)
			}
			if said := log.Take(); said != "" {
				t.Errorf("logged on a quiet node:\n%s", said)
			}
		})
	}
}
