package forward

import (
	"testing"
	"time"
)

// An element that was not used expires after the timeout, at most two ticks late; one that is used does not.
func TestWheel(t *testing.T) {
	type element struct {
		due     link[*element]
		used    time.Duration
		expired time.Duration
	}
	const timeout = time.Minute
	w := newWheel[*element](timeout)
	idle, busy := &element{}, &element{}
	idle.due.item, busy.due.item = idle, busy
	w.add(&idle.due, 0)
	w.add(&busy.due, 0)
	looks := 0
	for now := time.Duration(0); now < time.Hour; now += w.tick {
		if now < 30*time.Minute {
			busy.used = now
		}
		w.expire(now, func(e *element) {
			looks++
			if now-e.used < timeout {
				w.add(&e.due, e.used)
				return
			}
			e.expired = now
		})
	}
	for _, e := range []*element{idle, busy} {
		if late := e.expired - e.used - timeout; late < 0 || late > 2*w.tick {
			t.Errorf("used last at %v, expired at %v, %v late", e.used, e.expired, late)
		}
	}
	if w.count != 0 || looks > 35 {
		t.Errorf("%d elements remain; %d looks in 30 timeouts", w.count, looks)
	}
}

// Elements of any age expire once, also if nobody turned the wheel for long.
func TestWheelAfterPause(t *testing.T) {
	type element struct{ due link[int] }
	w := newWheel[int](250 * time.Millisecond)
	for i := range 500 {
		e := &element{}
		e.due.item = i
		w.add(&e.due, time.Duration(i)*time.Millisecond)
		if i == 100 {
			w.remove(&e.due)
		}
	}
	seen := map[int]int{}
	w.expire(time.Hour, func(i int) { seen[i]++ })
	if len(seen) != 499 || seen[100] != 0 || w.count != 0 {
		t.Errorf("%d of 499 elements expired, %d remain", len(seen), w.count)
	}
}
