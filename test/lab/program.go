//go:build linux

package lab

import (
	"errors"
	"fmt"
	"runtime"
)

// Run calls f with a T for programs that are not tests, and runs the cleanups when f returns or
// fails. It returns the error of f.
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

// program implements T outside of tests. It is not safe for concurrent use.
type program struct {
	err      error
	cleanups []func()
}

// Helper does nothing.
func (p *program) Helper() {}

// Logf does nothing: a program has its own output.
func (p *program) Logf(string, ...any) {}

// Cleanup registers f to be called when the program's function returns.
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
