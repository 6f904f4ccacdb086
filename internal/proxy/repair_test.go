package proxy

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
)

const repairTime = 20 * time.Millisecond

// startRepairs runs a loop that has written a Service, and whose comparisons take repairTime, all of it
// CPU time, from then on. It discards the log of the start.
func startRepairs(t *testing.T, tune func(*Options)) *testLoop {
	t.Helper()
	w := start(t, tune)
	w.setService("a", 1)
	w.listed()
	synctest.Wait()
	w.plane.refreshTime = repairTime
	w.takeSyncs()
	return w
}

// takeSyncs returns the comparisons since the last call.
func (w *testLoop) takeSyncs() []Sync {
	synctest.Wait()
	defer func() { w.syncs = nil }()
	return w.syncs
}

// remove removes the rules of the Service, as another program does, without a notification.
func (w *testLoop) remove() {
	synctest.Wait()
	w.plane.fence.Add(1)
	delete(w.plane.kernel, "a")
}

// edit removes the rules of the Service, and reports it.
func (w *testLoop) edit(e plane.Edit) {
	w.remove()
	w.loop.Edited(e)
}

func TestAnEditIsRepairedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startRepairs(t, nil)
		w.advance(time.Minute)
		began := time.Now()
		w.edit(plane.Edit{What: "chain, rule", By: "nft (thread 812)"})
		w.advance(2 * contestCalm)
		if s := w.takeSyncs(); len(s) != 1 || !s[0].Began.Equal(began) || s[0].Cause != ForeignEdit {
			t.Errorf("compared %+v, want once, at once", s)
		}
		w.wantLog("WARN msg=Another program changed the rules of Sluice; they are repaired " +
			"what=chain, rule by=nft (thread 812) steps=1")
	})
}

// However often another program changes our rules, repairs take at most a fifth of a CPU and
// a second in advance, and the number of log messages is bounded.
func TestRepairsArePacedByTheirCost(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			var reports []Contest
			w := startRepairs(t, func(o *Options) { o.Contested = func(c Contest) { reports = append(reports, c) } })
			const long = 20 * time.Second
			edits := int(long / every)
			for range edits {
				w.edit(plane.Edit{What: "table", By: "nft (thread 812)"})
				w.advance(every)
			}
			want := min(edits, int((repairBurst+long/repairShare)/repairTime))
			if n := len(w.takeSyncs()); n < want-2 || n > want+2 {
				t.Errorf("an edit every %v: %d repairs in %v, want %d", every, n, long, want)
			}
			w.advance(2 * contestCalm)
			text := w.log.String()
			if n := strings.Count(text, "Another program changed"); n != maxLogged {
				t.Errorf("an edit every %v: %d repairs are logged, want %d", every, n, maxLogged)
			}
			for _, once := range []string{
				"Another program keeps changing the rules of Sluice", "No other program changes the rules of Sluice any more",
			} {
				if strings.Count(text, once) != 1 {
					t.Errorf("an edit every %v: %q is not logged once:\n%s", every, once, text)
				}
			}
			if len(reports) != 2 || reports[0].By != "nft (thread 812)" || reports[1].Active() {
				t.Errorf("an edit every %v: reported %+v, want the beginning and the end of a contest", every, reports)
			}
			w.takeSyncs()
			began := time.Now()
			w.edit(plane.Edit{What: "table"})
			w.advance(repairTime)
			if s := w.takeSyncs(); len(s) != 1 || !s[0].Began.Equal(began) {
				t.Errorf("an edit after a long pause is not repaired at once: %+v", s)
			}
		})
	}
}

// The time without edits before a repair earns no more than the second in advance.
func TestAnExpensiveRepairDelaysTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startRepairs(t, nil)
		const takes = 10 * time.Second
		w.plane.refreshTime = takes
		w.advance(minPeriod / 2)
		began := time.Now()
		for range 2 {
			w.edit(plane.Edit{What: "table"})
			w.advance(takes)
		}
		w.advance(time.Minute)
		s := w.takeSyncs()
		if want := takes + repairShare*(takes-repairBurst); len(s) != 2 || s[1].Began.Sub(began) != want {
			t.Errorf("repairs %+v, want one at %v and one %v later", s, began, want)
		}
	})
}

// Time that a comparison spends waiting, for example for a lock, does not count as cost.
func TestWaitingDoesNotCountAsCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startRepairs(t, func(o *Options) { o.CPU = func() time.Duration { return 0 } })
		const takes = 5 * time.Second
		w.plane.refreshTime = takes
		w.edit(plane.Edit{What: "table"})
		w.advance(takes / 2)
		w.edit(plane.Edit{What: "table"})
		w.advance(takes)
		w.advance(takes / 2)
		if s := w.takeSyncs(); len(s) != 2 || !s[1].Began.Equal(s[0].Began.Add(takes)) {
			t.Errorf("repairs %+v, want the second at the end of the first", s)
		}
	})
}

// Comparisons for possible edits take at most a hundredth of a CPU. While another program is known
// to change rules, they are paced like repairs.
func TestPossibleEdits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startRepairs(t, nil)
		possible := func(pause time.Duration) {
			t.Helper()
			w.advance(repairTime) // the last comparison ends
			w.takeSyncs()
			began := time.Now()
			w.loop.Edited(plane.Edit{What: "chains just written", Possible: true})
			w.advance(time.Minute)
			if s := w.takeSyncs(); len(s) != 1 || s[0].Began.Sub(began) != pause || s[0].Cause != Period {
				t.Errorf("compared %+v, want after %v", s, pause)
			}
		}
		possible(0)
		w.loop.Edited(plane.Edit{What: "chains just written", Possible: true})
		w.wantLog()
		w.advance(time.Hour)
		w.loop.Edited(plane.Edit{What: "chains just written", Possible: true})
		possible(verifyPause * repairTime)
		w.wantLog()
		w.advance(time.Hour)
		w.edit(plane.Edit{What: "table"})
		possible(0)
		w.wantLog("WARN msg=Another program changed the rules of Sluice; they are repaired what=table by= steps=1")

		w.advance(time.Hour)
		w.remove()
		w.loop.Edited(plane.Edit{What: "chains just written", Possible: true})
		w.advance(time.Minute)
		w.wantLog("WARN msg=Another program changed the rules of Sluice; they are repaired what=rules, " +
			"without a notification by= steps=1")
	})
}

// An edit during a periodic comparison is logged once, as it is reported, whichever comparison repairs it.
func TestAnEditDuringAPeriodicComparison(t *testing.T) {
	for _, seen := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := startRepairs(t, nil)
			w.advance(time.Hour)
			w.loop.Edited(plane.Edit{What: "chains just written", Possible: true})
			w.advance(repairTime / 2)
			if seen {
				w.edit(plane.Edit{What: "table"})
			} else {
				w.loop.Edited(plane.Edit{What: "table"})
				w.advance(repairTime)
				w.remove()
			}
			w.advance(time.Minute)
			w.wantLog("WARN msg=Another program changed the rules of Sluice; they are repaired what=table by= steps=1")
		})
	}
}

// An unclear edit is compared as soon as any other, and logged only if something was repaired.
func TestAnUnclearEdit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startRepairs(t, nil)
		w.advance(time.Minute)
		began := time.Now()
		w.loop.Edited(plane.Edit{What: "rules in nat", Unclear: true})
		w.advance(repairTime)
		if s := w.takeSyncs(); len(s) != 1 || !s[0].Began.Equal(began) || s[0].Cause != ForeignEdit {
			t.Errorf("compared %+v, want at once", s)
		}
		w.wantLog()
		w.edit(plane.Edit{What: "rules in nat", Unclear: true})
		w.advance(repairTime)
		w.wantLog("WARN msg=Another program changed the rules of Sluice; they are repaired what=rules in nat by= steps=1")
	})
}

func TestPeriodicComparisons(t *testing.T) {
	for takes, want := range map[time.Duration]int{20 * time.Millisecond: 30, 2 * time.Second: 9, time.Minute: 5} {
		synctest.Test(t, func(t *testing.T) {
			w := startRepairs(t, nil)
			w.plane.refreshTime = takes
			w.advance(5*time.Hour + 5*time.Minute)
			if s := w.takeSyncs(); len(s) != want || s[0].Cause != Period {
				t.Errorf("a comparison takes %v: compared %+v, want %d times", takes, s, want)
			}
			w.wantLog()
		})
	}
}
