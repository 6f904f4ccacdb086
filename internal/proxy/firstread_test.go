package proxy

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
)

const readTime = 4 * time.Second

// startReading runs a loop whose plane takes readTime to read the kernel.
func startReading(t *testing.T) *testLoop {
	t.Helper()
	w := start(t, func(o *Options) { o.Plane.(*recorder).refreshTime = readTime })
	w.setService("a", 1)
	w.wantOps("refresh")
	return w
}

// wantApplyAfter compares the calls of the plane until the first write, and when that is.
func (w *testLoop) wantApplyAfter(wait time.Duration, ops string) {
	w.t.Helper()
	began := time.Now()
	applied := make(chan time.Duration, 1)
	w.plane.onApply = func() { applied <- time.Since(began) }
	w.listed()
	w.advance(time.Minute)
	w.wantOps(ops)
	if len(applied) != 1 {
		w.t.Fatalf("%d writes, want one", len(applied))
	}
	if got := <-applied; got != wait {
		w.t.Errorf("written %v after the feeds were complete, want %v", got, wait)
	}
}

// The kernel is read once, while the feeds deliver, and what was read is used once.
func TestTheKernelIsReadWhileTheFeedsDeliver(t *testing.T) {
	for _, tt := range []struct {
		name           string
		feeds, waiting time.Duration
	}{
		{"the feeds are complete at once", 0, readTime},
		{"the feeds are faster", time.Second, readTime - time.Second},
		{"the read is faster", readTime + time.Second, 0},
		{"an API server is down for hours", 5 * time.Hour, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startReading(t)
				w.advance(tt.feeds)
				complete := time.Now()
				w.wantApplyAfter(tt.waiting, "apply +a")
				s := w.syncs[0]
				if s.Cause != Start || s.Steps != 1 || !s.Began.Equal(complete) || s.Took() != tt.waiting {
					t.Errorf("%+v took %v, want a start of %v since %v", s, s.Took(), tt.waiting, complete)
				}
				w.compare(Request)
				w.advance(readTime)
				w.wantOps("refresh\napply ")
			})
		})
	}
}

func TestAReadThatFailsIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *Options) { o.Plane.(*recorder).refreshErr = errors.New("interrupted") })
		w.setService("a", 1)
		w.wantOps("refresh")
		w.plane.refreshErr = nil
		w.wantApplyAfter(0, "refresh\napply +a")
		w.wantLog()
	})
}

// After an edit by another program, or a request to compare, the kernel is read again.
func TestAnEditAfterTheReadBeganRepeatsIt(t *testing.T) {
	edit := func(w *testLoop) { w.loop.Edited(plane.Edit{What: "rule"}) }
	request := func(w *testLoop) { w.compare(Request) }
	for _, tt := range []struct {
		name string
		at   time.Duration
		do   func(*testLoop)
	}{
		{"an edit during the read", readTime / 2, edit},
		{"an edit after the read", 2 * readTime, edit},
		{"a request during the read", readTime / 2, request},
		{"a request after the read", 2 * readTime, request},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startReading(t)
				w.advance(tt.at)
				tt.do(w)
				w.wantApplyAfter(readTime, "refresh\napply +a")
			})
		})
	}
}

// An edit ends a read that is not over when the feeds are complete.
func TestAnEditAfterTheFeedsAreComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startReading(t)
		w.listed()
		w.advance(readTime / 2)
		w.wantOps("")
		w.loop.Edited(plane.Edit{What: "rule"})
		w.wantOps("refresh")
		w.advance(readTime)
		w.wantOps("apply +a\nrefresh") // the edit may be later than the read
		w.advance(2 * readTime)
		w.wantOps("apply ")
	})
}

// An edit that the loop receives together with the last feed is not missed, whichever it handles first.
func TestAnEditTogetherWithTheLastFeed(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			w := startReading(t)
			w.advance(2 * readTime)
			err := w.loop.request(t.Context(), func() {
				w.loop.Edited(plane.Edit{What: "rule"})
				w.listed()
			})
			if err != nil {
				t.Fatal(err)
			}
			w.advance(readTime)
			w.wantOps("refresh\napply +a")
		})
	}
}

// Queries are answered while the kernel is read.
func TestAViewDuringTheFirstRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startReading(t)
		began := time.Now()
		if v := w.view(); v.Started || v.Writes != 0 {
			t.Errorf("got %+v", v)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("answered after %v, want at once", waited)
		}
		w.wantOps("")
	})
}

// The loop ends at once while the kernel is read, and the read with it.
func TestStoppingDuringTheFirstRead(t *testing.T) {
	for name, before := range map[string]func(*testLoop){
		"the feeds are not complete": func(*testLoop) {},
		"the feeds are complete":     func(w *testLoop) { w.listed() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startReading(t)
				before(w)
				synctest.Wait()
				w.wantEndAtOnce()
				w.wantLog()
				for _, s := range w.syncs {
					if s.Err == nil {
						t.Errorf("wrote %+v", s)
					}
				}
			})
		})
	}
}
