package proxy

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// drains are the times at which a plane has something to write. A write ends the first.
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

// What a plane has to write at a later time is written then, although nothing
// changed.
func TestTheLoopMakesDueWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &drains{}
		w := start(t, func(o *Options) { o.Due = d.due })
		w.plane.onApply = d.written
		w.put("a", 1)
		w.listed()
		w.diary("refresh\napply +a")
		d.add(time.Minute)
		d.add(time.Hour)
		w.put("b", 1) // after that write the loop knows the times
		w.diary("apply +b")
		w.pass(time.Minute - 1)
		w.diary("")
		w.pass(1)
		w.diary("apply ")
		w.pass(time.Hour)
		w.diary("apply ")
		w.pass(time.Hour)
		w.diary("")
	})
}

// A write that is due and fails is repaired like any other.
func TestADueWriteThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &drains{}
		d.add(time.Minute)
		w := start(t, func(o *Options) { o.Due = d.due })
		w.plane.onApply = d.written
		w.plane.refuse = []error{nil, errors.New("no memory")}
		w.put("a", 1)
		w.listed()
		w.diary("refresh\napply +a")
		w.pass(time.Minute)
		w.diary("apply ")
		w.pass(firstRetry)
		w.diary("refresh\napply ")
	})
}

// A plane that is due for ever does not keep the loop busy.
func TestAPlaneThatIsAlwaysDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := start(t, func(o *Options) { o.Due = func() time.Time { return began } })
		w.listed()
		w.pass(time.Second)
		w.stop()
		synctest.Wait()
		if n := len(w.syncs); n < 50 || n > 101 {
			t.Errorf("%d writes in a second, want about one for each %v", n, minDue)
		}
	})
}
