package planetest

import (
	"errors"
	"math/rand/v2"
)

// ErrInjected is the error of reads and writes that fail on purpose.
var ErrInjected = errors.New("injected")

// Faults makes reads and writes of a plane fail: a read or a write once. A write may also
// fail after it was carried out, as if only the reply were lost, or in the middle.
type Faults struct {
	Room int // the size limit of one write, in the unit of the kernel

	// After is called after each write that was carried out. It may be nil.
	After func()

	writeFails int  // the number of the write that fails, counted from now; 0: none
	readFails  int  // the same for reads
	stepFails  int  // the same for steps of a write
	late       bool // the write fails after it was carried out
}

func (f *Faults) choose(r *rand.Rand) {
	f.writeFails, f.readFails, f.late = r.IntN(12), max(0, r.IntN(40)-20), r.IntN(2) == 0
	f.stepFails = r.IntN(1 + r.IntN(30))
}

// Write calls write, and fails if it is the chosen call.
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

// Step fails if it is the chosen call. A kernel calls it in the middle of writes.
func (f *Faults) Step() error {
	f.stepFails--
	if f.stepFails == 0 {
		return ErrInjected
	}
	return nil
}

// Read fails if it is the chosen call.
func (f *Faults) Read() error {
	f.readFails--
	if f.readFails == 0 {
		return ErrInjected
	}
	return nil
}
