package proxy

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// drains are the times at which a plane has something to write. A write removes the first.
type drains struct {
	mu sync.Mutex
	at []time.Time
}

func (d *drains) due() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.at) == 0 {
		return time.Time{}
	}
	return d.at[0]
}

func (d *drains) add(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = append(d.at, time.Now().Add(after))
}

func (d *drains) written() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.at) > 0 && !time.Now().Before(d.at[0]) {
		d.at = d.at[1:]
	}
}

// A due write is made at its time, although nothing has changed.
func TestTheLoopMakesDueWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &drains{}
		w := start(t, func(o *Options) { o.Due = d.due })
		w.plane.onApply = d.written
		w.setService("a", 1)
		w.listed()
		w.wantOps("refresh\napply +a")
		d.add(time.Minute)
		d.add(minPeriod / 2)
		w.setService("b", 1) // after this write the loop reads the times
		w.wantOps("apply +b")
		w.advance(time.Minute - 1)
		w.wantOps("")
		w.advance(1)
		w.wantOps("apply ")
		w.advance(minPeriod / 2)
		w.wantOps("apply ")
		w.advance(minPeriod / 4)
		w.wantOps("")
	})
}

// A due write that fails is retried like any other.
func TestADueWriteThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &drains{}
		d.add(time.Minute)
		w := start(t, func(o *Options) { o.Due = d.due })
		w.plane.onApply = d.written
		w.plane.applyErrs = []error{nil, errors.New("no memory")}
		w.setService("a", 1)
		w.listed()
		w.wantOps("refresh\napply +a")
		w.advance(time.Minute)
		w.wantOps("apply ")
		w.advance(firstRetry)
		w.wantOps("refresh\napply ")
	})
}

// A plane that is always due does not keep the loop busy.
func TestAPlaneThatIsAlwaysDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := start(t, func(o *Options) { o.Due = func() time.Time { return began } })
		w.listed()
		w.advance(time.Second)
		w.stop()
		synctest.Wait()
		if n := len(w.syncs); n < 50 || n > 101 {
			t.Errorf("%d writes in a second, want about one for each %v", n, minDue)
		}
	})
}

// A plane that has something to write earlier than it had said wakes the loop.
func TestReadyWakesTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, ready := &drains{}, make(chan struct{}, 1)
		w := start(t, func(o *Options) { o.Due, o.Ready = d.due, ready })
		w.plane.onApply = d.written
		w.setService("a", 1)
		w.listed()
		w.wantOps("refresh\napply +a")
		ready <- struct{}{} // nothing is due
		w.advance(time.Second)
		w.wantOps("")
		d.add(0)
		ready <- struct{}{}
		w.advance(time.Second)
		w.wantOps("apply ")
		w.advance(time.Minute)
		w.wantOps("")
	})
}
