// Package handover re-executes the program of this process, in the same process,
// and passes open files and values to the new run. It also passes them to another process,
// over a unix socket.
//
// The new run has the same PID, arguments and environment. It is the same
// binary, also if the file was replaced or deleted meanwhile: /proc/self/exe
// leads to the one that runs.
package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
)

// Handover is what one run of the program passes to the next. The zero value
// passes nothing.
type Handover struct {
	Files  map[string]*os.File
	Values map[string]json.RawMessage

	// Descriptors are more open files. A Handover that was received has their Numbers in this process,
	// by those in the previous run.
	Descriptors []int
	Numbers     map[int]int

	// To is the connection to the process that is the next run; nil: this process executes its program anew.
	To *net.UnixConn

	last []func(*Handover) error
}

// Last adds a function that adds what is known only when all parts of this run have ended.
func (h *Handover) Last(add func(*Handover) error) { h.last = append(h.last, add) }

// Finish calls the functions of Last. The Handover is complete then, except for what they report.
func (h *Handover) Finish() error {
	var errs []error
	for _, add := range h.last {
		errs = append(errs, add(h))
	}
	h.last = nil
	errs = append(errs, h.check())
	return errors.Join(errs...)
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

// Forget removes a value. A nil Handover has none.
func (h *Handover) Forget(name string) {
	if h != nil {
		delete(h.Values, name)
	}
}

// Get decodes a value into out, which stays as it is if there is no such value.
// A nil Handover has none.
func (h *Handover) Get(name string, out any) error {
	if h == nil || h.Values[name] == nil {
		return nil
	}
	if err := json.Unmarshal(h.Values[name], out); err != nil {
		return fmt.Errorf("read %s, handed over by the previous run: %w", name, err)
	}
	return nil
}

// Take returns a file and removes it from the Handover; nil if there is no such
// file. A nil Handover has none.
func (h *Handover) Take(name string) *os.File {
	if h == nil {
		return nil
	}
	f := h.Files[name]
	delete(h.Files, name)
	return f
}

// TakeDescriptors returns the Descriptors and removes them from the Handover. A nil Handover has none.
func (h *Handover) TakeDescriptors() []int {
	if h == nil {
		return nil
	}
	fds := h.Descriptors
	h.Descriptors = nil
	return fds
}

// Discard closes the Descriptors. Connections are reset.
func (h *Handover) Discard() {
	for _, fd := range h.TakeDescriptors() {
		reset(fd)
	}
}

// Close closes the files, and the connection To.
func (h *Handover) Close() {
	if h.To != nil {
		_ = h.To.Close() // the other process sees that nothing follows
	}
	for _, f := range h.Files {
		_ = f.Close() // nothing was written to it
	}
	h.Discard()
}
