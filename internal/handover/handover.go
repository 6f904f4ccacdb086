// Package handover re-executes the program of this process, in the same process,
// and passes open files and values to the new run.
//
// The new run has the same PID, arguments and environment. It is the same binary, even if the file was replaced or
// deleted meanwhile: /proc/self/exe refers to the running binary.
package handover

import (
	"encoding/json"
	"fmt"
	"os"
)

// Handover has the files and values that one run of the program passes to the next. The zero value passes nothing.
type Handover struct {
	Files  map[string]*os.File
	Values map[string]json.RawMessage

	// Last adds values that are known only when all parts of this run have ended; nil: there are none.
	Last func(*Handover) error
}

// Finish calls Last once. After that the Handover is complete, except for values if it failed.
func (h *Handover) Finish() error {
	add := h.Last
	h.Last = nil
	if add == nil {
		return nil
	}
	return add(h)
}

// Put adds a value.
func (h *Handover) Put(name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("hand over %s: %w", name, err)
	}
	if h.Values == nil {
		h.Values = map[string]json.RawMessage{}
	}
	h.Values[name] = data
	return nil
}

// Get decodes a value into out. It does not change out if there is no such value. A nil Handover has no values.
func (h *Handover) Get(name string, out any) error {
	if h == nil || h.Values[name] == nil {
		return nil
	}
	if err := json.Unmarshal(h.Values[name], out); err != nil {
		return fmt.Errorf("read %s, handed over by the previous run: %w", name, err)
	}
	return nil
}

// Take returns a file and removes it from the Handover; nil if there is no such file. A nil Handover has none.
func (h *Handover) Take(name string) *os.File {
	if h == nil {
		return nil
	}
	f := h.Files[name]
	delete(h.Files, name)
	return f
}

// Close closes the files.
func (h *Handover) Close() {
	for _, f := range h.Files {
		_ = f.Close() // nothing was written to it
	}
}
