package planetest

import (
	"errors"
	"math/rand/v2"
)

// ErrInjected is what goes wrong on purpose.
var ErrInjected = errors.New("injected")

// Faults is what a test lays between a plane and a kernel: little room, reads
// that fail, and writes that fail before they are carried out or after, when the
// answer gets lost.
type Faults struct {
	Room int
	// After is called after each write that was carried out. It may be nil.
	After func()

	writeFails int // which write from now on; 0: none
	readFails  int // the same of reads
	late       bool
}

// deal makes up what goes wrong next.
func (f *Faults) deal(r *rand.Rand) {
	f.writeFails, f.readFails, f.late = r.IntN(12), max(0, r.IntN(40)-20), r.IntN(2) == 0
}

// Write carries a write out, or fails.
func (f *Faults) Write(write func() error) error {
	f.writeFails--
	if f.writeFails == 0 && !f.late {
		return ErrInjected
	}
	if err := write(); err != nil {
		return err
	}
	if f.After != nil {
		f.After()
	}
	if f.writeFails == 0 {
		return ErrInjected
	}
	return nil
}

// Read fails when it is time for it.
func (f *Faults) Read() error {
	f.readFails--
	if f.readFails == 0 {
		return ErrInjected
	}
	return nil
}
