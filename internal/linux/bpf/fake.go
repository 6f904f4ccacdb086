package bpf

import (
	"context"
	"fmt"
	"maps"
	"sync"
)

// Fake holds the tables in memory. It is safe for concurrent use.
type Fake struct {
	mu    sync.Mutex
	state State
}

// NewFake returns empty tables.
func NewFake() *Fake { return &Fake{state: State{}} }

// Version returns the value that the entry of the programs should have.
func (f *Fake) Version() string { return "fake" }

// Read returns all entries.
func (f *Fake) Read(context.Context) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.state), nil
}

// Write carries out steps in order. Like the kernel it keeps those before one that fails.
func (f *Fake) Write(_ context.Context, steps []Step) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range steps {
		if err := s.check(); err != nil {
			return err
		}
		switch _, there := f.state[s.Key]; {
		case s.Remove && !there:
			return fmt.Errorf("%s: %w", s.Key, ErrNotFound)
		case s.Remove:
			delete(f.state, s.Key)
		default:
			f.state[s.Key] = s.Value
		}
	}
	return nil
}

// Remove empties all tables.
func (f *Fake) Remove(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.state)
	f.state = State{}
	if n == 0 {
		return nil, nil
	}
	return []string{fmt.Sprintf("%d entries", n)}, nil
}

// check returns an error if the entry does not fit into the map.
func (s *Step) check() error {
	k, v := s.Table.sizes()
	switch {
	case s.Table == Programs:
		return nil
	case len(s.Data) != k, !s.Remove && len(s.Value) != v:
		return fmt.Errorf("an entry of %s has %d and %d bytes, want %d and %d", s.Table, len(s.Data), len(s.Value), k, v)
	}
	return nil
}
