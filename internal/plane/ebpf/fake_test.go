package ebpf

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
)

// fake holds the tables in memory. It is safe for concurrent use.
type fake struct {
	mu    sync.Mutex
	state bpf.State
}

func newFake() *fake { return &fake{state: bpf.State{}} }

// Version returns the value that the entry of the programs should have.
func (f *fake) Version() string { return "fake" }

// Read returns all entries.
func (f *fake) Read(context.Context) (bpf.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.state), nil
}

// Write carries out steps in order. Like the kernel it keeps those before one that fails.
func (f *fake) Write(_ context.Context, steps []bpf.Step) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range steps {
		if err := verify(s); err != nil {
			return err
		}
		switch _, there := f.state[s.Key]; {
		case s.Remove && !there:
			return fmt.Errorf("%s: %w", s.Key, bpf.ErrNotFound)
		case s.Remove:
			delete(f.state, s.Key)
		default:
			f.state[s.Key] = s.Value
		}
	}
	return nil
}

// Remove empties all tables.
func (f *fake) Remove(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.state)
	f.state = bpf.State{}
	if n == 0 {
		return nil, nil
	}
	return []string{fmt.Sprintf("%d entries", n)}, nil
}

// verify returns an error if the entry does not fit into the map.
func verify(s bpf.Step) error {
	sizes := map[bpf.Table]struct{ key, value int }{
		bpf.Slots: {20, 24}, bpf.Members: {36, 4}, bpf.NodeAddrs: {16, 4}, bpf.Frontends: {20, 32},
	}
	want, isMap := sizes[s.Table]
	if isMap && (len(s.Data) != want.key || !s.Remove && len(s.Value) != want.value) {
		return fmt.Errorf("an entry of %s has %d and %d bytes, want %d and %d", s.Table, len(s.Data), len(s.Value), want.key,
			want.value)
	}
	return nil
}
