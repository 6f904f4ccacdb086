package forward

import "time"

// slotsPerTimeout is how many slots a timeout takes: an element expires at most this fraction of the
// timeout late.
const slotsPerTimeout = 64

// wheel finds elements that have been unused for a timeout. The use of an element does not involve the wheel,
// which checks each element about once per timeout.
type wheel[T any] struct {
	timeout time.Duration
	tick    time.Duration
	slots   [slotsPerTimeout + 2]link[T]
	done    int64 // the last tick that expire has handled
	count   int
}

func newWheel[T any](timeout time.Duration) *wheel[T] {
	return &wheel[T]{timeout: timeout, tick: max(timeout/slotsPerTimeout, time.Millisecond)}
}

// add adds an element that was used at a time, which counts from any moment.
func (w *wheel[T]) add(e *link[T], used time.Duration) {
	at := max(int64((used+w.timeout)/w.tick)+1, w.done+1)
	w.slots[at%int64(len(w.slots))].push(e)
	w.count++
}

// remove removes an element.
func (w *wheel[T]) remove(e *link[T]) {
	e.remove()
	w.count--
}

// expire takes the elements off the wheel that are due, and calls check with each: check adds the
// element again if it was used meanwhile. Without elements it only keeps the time.
func (w *wheel[T]) expire(now time.Duration, check func(T)) {
	last := int64(now / w.tick)
	for ; w.done < last && w.count > 0; w.done++ {
		slot := &w.slots[(w.done+1)%int64(len(w.slots))]
		for n := w.length(slot); n > 0; n-- {
			e := slot.next
			w.remove(e)
			check(e.item)
		}
	}
	w.done = max(w.done, last)
}

// length counts the elements of a slot.
func (w *wheel[T]) length(slot *link[T]) int {
	n := 0
	if slot.next == nil {
		return 0
	}
	for e := slot.next; e != slot; e = e.next {
		n++
	}
	return n
}
