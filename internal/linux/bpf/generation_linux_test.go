package bpf

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// unverified is how often a socket repeats a choice until the program verifies it in any case, by sock.c.
const unverified = 16

// A socket repeats its choice without a check until the tables change. While they are written, each choice is checked.
func TestRepeatedChoices(t *testing.T) {
	const a, b = "127.0.0.1:53", "127.0.0.2:53"
	n := dns(t)
	entries := map[string][]Entry{a: service(dns4, 17, OfNode, a), b: service(dns4, 17, OfNode, b)}
	n.with(unix.AF_INET, func(s *socket) error {
		want := func(backend string) error {
			// The next one is verified. Choices at random are all the same with a probability of 2^-15.
			for range unverified - 1 {
				if by, from, err := s.ask(dns4); err != nil || by != backend || from != dns4 {
					return fmt.Errorf("%s answers, as %s, want %s: %w", by, from, backend, err)
				}
			}
			return nil
		}
		first, _, err := s.ask(dns4)
		if err != nil {
			return err
		}
		other := map[string]string{a: b, b: a}[first]
		n.unnoticed(Step{Entry: member(entries[first]), Remove: true})
		if err := want(first); err != nil {
			return fmt.Errorf("without a change of the generation: %w", err)
		}
		n.write(entries[other]...)
		if err := want(other); err != nil {
			return fmt.Errorf("after a change: %w", err)
		}
		n.beginChange()
		n.unnoticed(Step{Entry: member(entries[other]), Remove: true})
		for _, e := range entries[first] {
			n.unnoticed(Step{Entry: e})
		}
		if err := want(first); err != nil {
			return fmt.Errorf("during a change: %w", err)
		}
		return nil
	})
}

// An entry for replies that other sockets have evicted is written again.
func TestEvictedOriginals(t *testing.T) {
	n := dns(t)
	n.with(unix.AF_INET, func(s *socket) error {
		if _, _, err := s.ask(dns4); err != nil {
			return err
		}
		removed := 0
		err := removeIf(n.conn.maps[sockMapUDPReplies], func(_, _ []byte) bool { removed++; return true })
		if err != nil || removed != 1 {
			return fmt.Errorf("%d entries for replies, want one: %w", removed, err)
		}
		wrong := 0
		for range 2 * unverified {
			_, from, err := s.ask(dns4)
			if err != nil {
				return err
			}
			if from != dns4 {
				wrong++
			}
		}
		if wrong == 0 || wrong >= unverified {
			return fmt.Errorf("%d replies came from the backend, want 1 to %d", wrong, unverified-1)
		}
		return nil
	})
}

// An entry that the kernel has given to another flow, while a program reads it, is taken for none.
func TestRecycledEntries(t *testing.T) {
	n := dns(t)
	n.with(unix.AF_INET, func(s *socket) error {
		if _, _, err := s.ask(dns4); err != nil {
			return err
		}
		for _, name := range []string{sockMapUDPReplies, "udp_choices"} {
			m := n.conn.maps[name]
			err := each(m, func(k, v []byte) {
				v[0] ^= 1 // the copy of the key begins with the cookie of the socket
				if err := m.Put(k, v); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				return err
			}
		}
		backend, from, err := s.ask(dns4) // chooses again
		if err == nil && from != dns4 {
			err = fmt.Errorf("the reply of %s comes from %s", backend, from)
		}
		return err
	})
}

// LRU maps have room for the free entries of each processor besides.
func TestRoomOfLRUMaps(t *testing.T) {
	n := dns(t)
	want := 65536 + 128*uint32(ebpf.MustPossibleCPU())
	for _, name := range []string{sockMapUDPReplies, "udp_choices", sockMapCounts} {
		if got := n.conn.maps[name].MaxEntries(); got != want {
			t.Errorf("%s has room for %d entries, want %d", name, got, want)
		}
	}
}

// member returns the entry of the only backend of a Service.
func member(list []Entry) Entry {
	return list[slices.IndexFunc(list, func(e Entry) bool { return e.Table == Members })]
}

// unnoticed carries out a step without a new generation.
func (n *node) unnoticed(s Step) {
	n.t.Helper()
	if err := n.conn.write(&s); err != nil {
		n.t.Fatal(err)
	}
}

// beginChange begins a change, as a process does that ends before the change is complete.
func (n *node) beginChange() {
	n.t.Helper()
	m := n.conn.maps[sockMapGeneration]
	v, err := m.LookupBytes(native32(0))
	if err == nil {
		err = m.Put(native32(0), native64(binary.NativeEndian.Uint64(v)|1))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}
