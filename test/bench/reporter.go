//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"
	"sync"
)

// reporter is who a lab reports to, outside of a test.
type reporter struct {
	mu       sync.Mutex
	cleanups []func()
}

// fatal is what Fatalf ends attempt with.
type fatal struct{ error }

// attempt runs f and cleans up after it.
func attempt(f func(*reporter) error) (err error) {
	t := &reporter{}
	defer t.clean()
	defer func() {
		if p := recover(); p != nil {
			stop, ok := p.(fatal)
			if !ok {
				panic(p)
			}
			err = stop.error
		}
	}()
	return f(t)
}

func (t *reporter) clean() {
	t.mu.Lock()
	cleanups := t.cleanups
	t.mu.Unlock()
	for _, f := range slices.Backward(cleanups) {
		f()
	}
}

// Helper implements lab.T.
func (t *reporter) Helper() {}

// Fatalf implements lab.T.
func (t *reporter) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }

// Logf implements lab.T.
func (t *reporter) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Cleanup implements lab.T.
func (t *reporter) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}
