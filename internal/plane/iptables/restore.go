package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// restorer writes the entries of one family. Each Write is one restore.
type restorer struct {
	kernel Kernel
	family iptables.Family
	edited func() bool // reports whether another program has changed our rules since they were read
}

// Room implements ledger.Writer.
func (r restorer) Room() int {
	if r.kernel == nil {
		return math.MaxInt
	}
	return r.kernel.Room()
}

// Size implements ledger.Writer.
func (r restorer) Size(s step) int { return size(s) }

// Print implements ledger.Writer. It returns a command and its input.
func (r restorer) Print(steps []*step) string {
	input, _ := compose(steps)
	return "# " + r.family.Program() + "-restore --noflush\n" + string(input)
}

// Write implements ledger.Writer. After an edit by another program, such as a flush, the kernel rejects rules that
// refer to chains which are gone. This is not the fault of a Service.
func (r restorer) Write(ctx context.Context, steps []*step) error {
	input, begins := compose(steps)
	err := r.kernel.Restore(ctx, r.family, input)
	if refused, is := errors.AsType[*iptables.RestoreError](err); is && !r.edited() {
		return &ledger.Refusal{Phase: begins[min(refused.Committed, len(begins)-1)], Err: err}
	}
	return err
}

// compose prints steps as the input of one restore, and returns the phases at which its sections begin.
func compose(steps []*step) (input []byte, begins []ledger.Phase) {
	w, size := writer{}, 0
	for i := range steps {
		size += lineSize + len(steps[i].Key.rule) + len(steps[i].New)*4/3
	}
	w.Grow(size)
	for i, begin := range sections() {
		end := len(steps)
		if next := i + 1; next < len(sections()) {
			end, _ = slices.BinarySearchFunc(steps, sections()[next], func(s *step, p ledger.Phase) int {
				return cmp.Compare(s.Phase, p)
			})
		}
		if end > 0 {
			begins = append(begins, begin)
			w.section(steps[:end])
		}
		steps = steps[end:]
	}
	return w.Bytes(), begins
}

// lineSize exceeds the length of most lines without their rule.
const lineSize = 48

// writer prints the input of a restore.
type writer struct{ bytes.Buffer }

func (w *writer) line(words ...string) {
	for i, word := range words {
		if i > 0 {
			w.WriteByte(' ')
		}
		w.WriteString(word)
	}
	w.WriteByte('\n')
}

// each prints one line for each rule of a value.
func (w *writer) each(verb string, k key, value string) {
	for rule := range split(value) {
		w.line(verb, k.chain, rule)
	}
}

// section prints the steps of one table. It empties removed chains first, and deletes them at the end.
func (w *writer) section(steps []*step) {
	w.line("*" + steps[0].Key.table.String())
	for _, s := range steps {
		if s.Op == ledger.Empty {
			w.line(":"+s.Key.chain, "-", "[0:0]")
		}
	}
	w.chains(steps)
	for _, s := range steps {
		switch {
		case whole(s) || s.Op == ledger.Empty:
		case s.Key.rule != "":
			w.rule(s)
		case s.Op != ledger.Remove:
			w.change(s)
		case !s.Key.ours():
			w.each("-D", s.Key, s.Old)
		}
	}
	for _, s := range slices.Backward(steps) { // in reverse: -I adds each in front of the ones before
		if s.Key.rule != "" && s.Op != ledger.Remove && s.Key.inFront() {
			w.line("-I", s.Key.chain, s.Key.rule)
		}
	}
	for _, s := range steps {
		if s.Op == ledger.Remove && s.Key.rule == "" && s.Key.ours() {
			w.line("-X", s.Key.chain)
		}
	}
	w.line("COMMIT")
}

// chains prints the chains that are written as a whole: first their names, as rules jump to
// them. They are sorted by name: libiptc keeps chains sorted and searches for the position
// of each, so that a sorted large first load takes a quarter less time.
func (w *writer) chains(steps []*step) {
	var selected []*step
	for _, s := range steps {
		if whole(s) {
			selected = append(selected, s)
		}
	}
	slices.SortFunc(selected, func(a, b *step) int { return cmp.Compare(a.Key.chain, b.Key.chain) })
	for _, s := range selected {
		w.line(":"+s.Key.chain, "-", "[0:0]")
	}
	for _, s := range selected {
		w.each("-A", s.Key, s.New)
	}
}

// rule prints a step of a single rule, except an addition in front.
func (w *writer) rule(s *step) {
	if s.Op == ledger.Remove {
		w.line("-D", s.Key.chain, s.Key.rule)
		return
	}
	if s.Op == ledger.Change {
		w.line("-D", s.Key.chain, s.Old)
	}
	if !s.Key.inFront() {
		w.line("-A", s.Key.chain, s.Key.rule)
	}
}

// change replaces the last rules of a chain that Services share, or the jumps in a
// chain of the kernel, which come first.
func (w *writer) change(s *step) {
	w.each("-D", s.Key, s.Old)
	if s.Key.shared() {
		w.each("-A", s.Key, s.New)
		return
	}
	for _, rule := range slices.Backward(slices.Collect(split(s.New))) {
		w.line("-I", s.Key.chain, rule)
	}
}
