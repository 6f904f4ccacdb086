package proxy

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What a plane has to write at a later time is written then, although nothing
// changed, and together with a change that comes after that time.
func TestTheLoopWritesWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at time.Time
		w := start(t, func(o *Options) { o.Due = func() time.Time { return at } })
		w.plane.onApply = func() { at = time.Time{} }
		w.put("a", 1)
		w.listed()
		w.diary("refresh\napply +a")

		at = time.Now().Add(time.Minute)
		w.put("b", 1) // after it the loop knows the time
		w.plane.onApply = nil
		w.diary("apply +b")
		w.plane.onApply = func() { at = time.Time{} }
		w.pass(time.Minute - 1)
		w.diary("")
		w.pass(1)
		w.diary("apply ")
		w.pass(time.Hour)
		w.diary("")
	})
}

// A write that is due and fails is repaired like any other.
func TestADueWriteThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at time.Time
		w := start(t, func(o *Options) { o.Due = func() time.Time { return at } })
		w.put("a", 1)
		at = time.Now().Add(time.Minute)
		w.listed()
		w.diary("refresh\napply +a")
		w.plane.refuse = []error{errors.New("no memory")}
		w.plane.onApply = func() { at = time.Time{} }
		w.pass(time.Minute)
		w.diary("apply ")
		w.pass(firstRetry)
		w.diary("refresh\napply ")
	})
}

// A plane that is due for ever does not keep the loop from anything.
func TestAPlaneThatIsAlwaysDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := start(t, func(o *Options) { o.Due = func() time.Time { return began } })
		w.listed()
		w.pass(time.Second)
		w.stop()
		synctest.Wait()
		if n := len(w.syncs); n < 50 || n > 101 {
			t.Errorf("%d writes in a second, want about one for each %v", n, dueFloor)
		}
	})
}
