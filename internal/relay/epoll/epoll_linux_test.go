package epoll

import (
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// start runs a Loop until the test ends, and returns a function that calls another one on its thread and waits for it.
func start(t *testing.T) (l *Loop, on func(f func())) {
	t.Helper()
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- l.Run(0) }()
	t.Cleanup(func() {
		l.Post(l.End)
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		l.Post(func() { t.Error("a function was called after the end") })
	})
	return l, func(f func()) {
		done := make(chan struct{})
		l.Post(func() {
			defer close(done)
			f()
		})
		<-done
	}
}

// pair returns two connected sockets.
func pair(t *testing.T) (near, far int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

type handler func(events uint32)

func (h handler) Ready(events uint32) { h(events) }

// A handler is called with the events of its file descriptor, also in place of an earlier one with the
// same number, and not after it was closed or removed.
func TestEvents(t *testing.T) {
	l, on := start(t)
	near, far := pair(t)
	events := make(chan uint32, 10)
	on(func() {
		if err := l.Add(near, unix.EPOLLIN|unix.EPOLLET, handler(func(e uint32) { events <- e })); err != nil {
			t.Error(err)
		}
	})
	_, _ = unix.Write(far, []byte("x"))
	if e := <-events; e != unix.EPOLLIN {
		t.Errorf("events %#x, want EPOLLIN", e)
	}
	on(func() {
		if err := l.Remove(near); err != nil {
			t.Error(err)
		}
	})
	_, _ = unix.Write(far, []byte("x"))
	on(func() { l.Close(near) })
	on(func() {}) // the loop has waited for events since
	if len(events) > 0 {
		t.Errorf("%d events after the end", len(events))
	}
	on(func() {
		if err := l.Add(near, unix.EPOLLIN, handler(func(uint32) {})); err == nil {
			t.Error("a closed file descriptor was added")
		}
	})
	_ = unix.Close(far)
}

// An event that was received for a file descriptor does not reach a later user of the same number.
func TestReuse(t *testing.T) {
	l, on := start(t)
	first, firstFar := pair(t)
	second, secondFar := pair(t)
	var reused, calls int
	done := make(chan struct{}, 2)
	replace := func(other int) handler {
		return func(uint32) {
			calls++
			if calls > 1 {
				t.Error("an event of a closed file descriptor was passed on")
			}
			l.Close(other)
			near, _ := pair(t) // it has the same number
			reused = near
			if err := l.Add(near, unix.EPOLLIN, handler(func(uint32) { t.Error("an event of the earlier user") })); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
		}
	}
	on(func() { // both events arrive at once
		_ = l.Add(first, unix.EPOLLIN|unix.EPOLLET, replace(second))
		_ = l.Add(second, unix.EPOLLIN|unix.EPOLLET, replace(first))
		_, _ = unix.Write(firstFar, []byte("x"))
		_, _ = unix.Write(secondFar, []byte("x"))
	})
	<-done
	on(func() {})
	if reused != first && reused != second {
		t.Errorf("file descriptor %d is neither %d nor %d", reused, first, second)
	}
}

// Timers expire in order, not before their time, and not if they were stopped.
func TestTimers(t *testing.T) {
	l, on := start(t)
	var order []int
	var early bool
	done := make(chan struct{})
	on(func() {
		begin := time.Now()
		timers := make([]Timer, 5)
		for _, i := range []int{3, 1, 4, 0, 2} {
			at := begin.Add(time.Duration(i+1) * 5 * time.Millisecond)
			l.Set(&timers[i], at, func() {
				early = early || time.Now().Before(at)
				order = append(order, i)
				if i == 0 {
					l.Stop(&timers[3])
					l.Stop(&timers[3]) // has no effect
				}
				if i == 4 {
					close(done)
				}
			})
		}
		l.Set(&timers[1], begin.Add(22*time.Millisecond), func() { order = append(order, 10) })
	})
	<-done
	if want := []int{0, 2, 10, 4}; !slices.Equal(order, want) || early {
		t.Errorf("order %v, too early: %v; want %v", order, early, want)
	}
}

// Functions that were posted by many goroutines are all called, each one in the order of its goroutine;
// Next calls after the events.
func TestPostAndNext(t *testing.T) {
	l, on := start(t)
	const goroutines, calls = 8, 500
	last := make([]int, goroutines)
	var posting sync.WaitGroup
	for g := range goroutines {
		posting.Go(func() {
			for i := range calls {
				l.Post(func() {
					if last[g] != i {
						t.Errorf("goroutine %d: call %d after %d", g, i, last[g])
					}
					last[g] = i + 1
				})
			}
		})
	}
	posting.Wait()
	on(func() {
		for g, n := range last {
			if n != calls {
				t.Errorf("goroutine %d: %d calls", g, n)
			}
		}
	})
	var order []string
	done := make(chan struct{})
	on(func() {
		l.Next(func() {
			order = append(order, "next")
			l.Next(func() { close(done) }) // without an event
		})
		order = append(order, "event")
	})
	<-done
	if !slices.Equal(order, []string{"event", "next"}) {
		t.Errorf("order %v", order)
	}
}

// Run returns an error if the namespace does not exist, and Post has no effect then.
func TestNoNamespace(t *testing.T) {
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Run(1 << 20); err == nil {
		t.Error("Run without a namespace has no error")
	}
	l.Post(func() {})
}
