//go:build linux

package lab

import (
	"errors"
	"fmt"
	"runtime"
)

// Run calls f with a T for programs that are no tests, and ends what f has built
// when f returns or fails. The error is what f failed with.
func Run(f func(T)) error {
	p := &program{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer p.end()
		f(p)
	}()
	<-done
	return p.err
}

// program is a T outside of a test. One goroutine uses it.
type program struct {
	err      error
	cleanups []func()
}

// Helper does nothing.
func (p *program) Helper() {}

// Logf does nothing: a program tells its own story.
func (p *program) Logf(string, ...any) {}

// Cleanup has f called when the program's function is over.
func (p *program) Cleanup(f func()) { p.cleanups = append(p.cleanups, f) }

// Fatalf ends the program's function.
func (p *program) Fatalf(format string, args ...any) {
	p.err = errors.Join(p.err, fmt.Errorf(format, args...))
	runtime.Goexit()
}

func (p *program) end() {
	for len(p.cleanups) > 0 {
		last := len(p.cleanups) - 1
		f := p.cleanups[last]
		p.cleanups = p.cleanups[:last]
		f()
	}
}
