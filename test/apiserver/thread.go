//go:build linux

package apiserver

import (
	"runtime"
	"sync"
)

// thread is one thread of the system that runs what it is given. Processes that
// are to die with who started them must be started by one that stays.
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

// do runs f on the thread and returns what it returns.
func (t *thread) do(f func() error) error {
	done := make(chan error, 1)
	t.work <- func() { done <- f() }
	return <-done
}
