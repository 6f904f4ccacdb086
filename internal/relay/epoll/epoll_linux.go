// Package epoll calls handlers on one thread when file descriptors are ready and when timers expire (epoll(7)).
package epoll

import (
	"container/heap"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Handler is notified that a file descriptor is ready. Events are flags of epoll_wait(2), such as unix.EPOLLIN.
type Handler interface{ Ready(events uint32) }

// Loop waits for events. All methods except Post must be called on its thread: by handlers,
// timers, and functions that were posted.
type Loop struct {
	fd, wake int
	slots    []slot // by file descriptor
	timers   timers
	now      time.Time
	next     []func() // to call after the events

	ended bool

	mu     sync.Mutex
	posted []func()
	closed bool
}

// slot is the handler of a file descriptor. Its generation distinguishes it from an earlier user of
// the same number, for which an event may still be on its way.
type slot struct {
	handler    Handler
	generation int32
}

// maxEvents is how many events the loop receives at once.
const maxEvents = 256

// New opens a Loop.
func New() (*Loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create an epoll instance: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	l := &Loop{fd: fd, wake: wake, now: time.Now()}
	if err := l.Add(wake, unix.EPOLLIN|unix.EPOLLET, nil); err != nil {
		return nil, errors.Join(err, unix.Close(fd), unix.Close(wake))
	}
	return l, nil
}

// Run calls handlers until a posted function calls End, on a thread of its own, in the network namespace of a file
// descriptor or, if it is 0, of the process. It closes the Loop.
func (l *Loop) Run(namespace int) error {
	return netns.Do(namespace, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		events := make([]unix.EpollEvent, maxEvents)
		for !l.ended {
			if err := l.once(events); err != nil {
				return err
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closed = true
		return errors.Join(unix.Close(l.fd), unix.Close(l.wake))
	})
}

// Discard closes a Loop in place of Run.
func (l *Loop) Discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	_, _ = unix.Close(l.fd), unix.Close(l.wake) // nothing was written
}

// once waits for events and timers, and calls their handlers.
func (l *Loop) once(events []unix.EpollEvent) error {
	timeout := l.timers.wait(time.Now())
	if len(l.next) > 0 {
		timeout = 0
	}
	n, err := unix.EpollWait(l.fd, events, timeout)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for events: %w", err)
	}
	l.now = time.Now()
	for _, e := range events[:max(n, 0)] {
		if int(e.Fd) == l.wake {
			l.runPosted()
			continue
		}
		if s := l.slots[e.Fd]; s.handler != nil && s.generation == e.Pad {
			s.handler.Ready(e.Events)
		}
	}
	for t := l.timers.expired(l.now); t != nil; t = l.timers.expired(l.now) {
		t.expire()
	}
	next := l.next
	l.next = nil
	for _, f := range next {
		f()
	}
	return nil
}

// Next calls a function once the handlers of all events that have been received were called. A handler
// that has much to do can so let others go first.
func (l *Loop) Next(f func()) { l.next = append(l.next, f) }

// runPosted calls the posted functions.
func (l *Loop) runPosted() {
	var count [8]byte
	_, _ = unix.Read(l.wake, count[:]) // sets it to 0; EAGAIN: it is 0
	l.mu.Lock()
	posted := l.posted
	l.posted = nil
	l.mu.Unlock()
	for _, f := range posted {
		f()
	}
}

// Post makes the loop call a function soon, unless it has ended. Any goroutine may call it.
func (l *Loop) Post(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.posted = append(l.posted, f)
	if len(l.posted) == 1 {
		one := [8]byte{1}
		_, _ = unix.Write(l.wake, one[:]) // it cannot be full
	}
}

// End ends Run.
func (l *Loop) End() { l.ended = true }

// Now returns when the loop last woke up.
func (l *Loop) Now() time.Time { return l.now }

// Add calls a handler for events of a file descriptor.
func (l *Loop) Add(fd int, events uint32, h Handler) error {
	for fd >= len(l.slots) {
		l.slots = append(l.slots, slot{})
	}
	s := &l.slots[fd]
	s.handler = h
	s.generation++
	return l.control(unix.EPOLL_CTL_ADD, fd, events)
}

// Close removes a file descriptor and closes it.
func (l *Loop) Close(fd int) {
	l.slots[fd].handler = nil
	l.slots[fd].generation++
	_ = unix.Close(fd) // which also removes it from epoll
}

// Remove removes a file descriptor without closing it.
func (l *Loop) Remove(fd int) error {
	l.slots[fd].handler = nil
	l.slots[fd].generation++
	return l.control(unix.EPOLL_CTL_DEL, fd, 0)
}

func (l *Loop) control(op, fd int, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: l.slots[fd].generation}
	if err := unix.EpollCtl(l.fd, op, fd, &e); err != nil {
		return fmt.Errorf("set events of file descriptor %d: %w", fd, err)
	}
	return nil
}

// Timer calls a function once. The zero value is a timer that is not set.
type Timer struct {
	at     time.Time
	expire func()
	index  int // in the heap, from 1; 0 if it is not set
}

// Set makes the timer call a function at a time. It replaces an earlier time and function.
func (l *Loop) Set(t *Timer, at time.Time, expire func()) {
	t.at, t.expire = at, expire
	if t.index > 0 {
		heap.Fix(&l.timers, t.index-1)
		return
	}
	heap.Push(&l.timers, t)
}

// Stop makes the timer call nothing.
func (l *Loop) Stop(t *Timer) {
	if t.index > 0 {
		heap.Remove(&l.timers, t.index-1)
	}
}

// timers is a heap, the first to expire in front.
type timers []*Timer

// Len implements heap.Interface.
func (t timers) Len() int { return len(t) }

// Less implements heap.Interface.
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }

// Swap implements heap.Interface.
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i+1, j+1
}

// Push implements heap.Interface.
func (t *timers) Push(x any) {
	timer := x.(*Timer)
	*t = append(*t, timer)
	timer.index = len(*t)
}

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	last.index = 0
	return last
}

// wait returns how many milliseconds epoll_wait may wait; -1 without a timer.
func (t timers) wait(now time.Time) int {
	if len(t) == 0 {
		return -1
	}
	return max(0, int((t[0].at.Sub(now)+time.Millisecond-1)/time.Millisecond))
}

// expired removes and returns the first timer that has expired; nil: there is none.
func (t *timers) expired(now time.Time) *Timer {
	if len(*t) == 0 || (*t)[0].at.After(now) {
		return nil
	}
	return heap.Pop(t).(*Timer)
}
