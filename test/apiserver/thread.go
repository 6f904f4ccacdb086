//go:build linux

package apiserver

import (
	"runtime"
	"sync"
)

// thread is an OS thread that runs functions. A process with a parent-death signal must be
// started by a thread that does not end.
type thread struct {
	work chan func()
	end  func()
}

func newThread() *thread {
	t := &thread{work: make(chan func())}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		for f := range t.work {
			f()
		}
	}()
	t.end = sync.OnceFunc(func() {
		close(t.work)
		<-ended
	})
	return t
}

// do runs f on the thread and returns its error.
func (t *thread) do(f func() error) error {
	done := make(chan error, 1)
	t.work <- func() { done <- f() }
	return <-done
}
