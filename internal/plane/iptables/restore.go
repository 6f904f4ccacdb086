package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// restorer writes the entries of one family. Each Write is one restore.
type restorer struct {
	kernel  Writer
	family  iptables.Family
	program string
}

// Room implements ledger.Writer.
func (r restorer) Room() int { return r.kernel.Room() }

// Size implements ledger.Writer.
func (r restorer) Size(s step) int { return size(s) }

// Print implements ledger.Writer: what a person would give to the program.
func (r restorer) Print(steps []step) string {
	input, _ := compose(steps)
	return "# " + r.program + "-restore --noflush\n" + string(input)
}

// Write implements ledger.Writer.
func (r restorer) Write(ctx context.Context, steps []step) error {
	input, begins := compose(steps)
	err := r.kernel.Restore(ctx, r.family, input)
	if refused, is := errors.AsType[*iptables.RestoreError](err); is {
		return &ledger.Refusal{Phase: begins[min(refused.Committed, len(begins)-1)], Err: err}
	}
	return err
}

// compose prints steps as the input of one restore, and returns the phases at which
// its sections begin.
func compose(steps []step) (input []byte, begins []ledger.Phase) {
	w, size := writer{}, 0
	for i := range steps {
		size += lineSize + len(steps[i].Key.rule) + len(steps[i].New)*4/3
	}
	w.Grow(size)
	for i, begin := range sections() {
		end := len(steps)
		if next := i + 1; next < len(sections()) {
			end, _ = slices.BinarySearchFunc(steps, sections()[next], func(s step, p ledger.Phase) int { return cmp.Compare(s.Phase, p) })
		}
		if end > 0 {
			begins = append(begins, begin)
			w.section(steps[:end])
		}
		steps = steps[end:]
	}
	return w.Bytes(), begins
}

// lineSize is longer than most lines without their rule.
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
	for rule := range k.rules(value) {
		w.line(verb, k.chain, rule)
	}
}

// insert prints the lines that put rules in front of a chain.
func (w *writer) insert(k key, value string) {
	for _, rule := range slices.Backward(slices.Collect(k.rules(value))) {
		w.line("-I", k.chain, rule)
	}
}

// section prints the steps of one table. Chains that go are emptied before anything
// else, and deleted at the end.
func (w *writer) section(steps []step) {
	w.line("*" + steps[0].Key.table.String())
	for _, s := range steps {
		if s.Op == ledger.Empty {
			w.line(":"+s.Key.chain, "-", "[0:0]")
		}
	}
	w.chains(steps)
	for _, s := range steps {
		w.addition(s)
	}
	for _, s := range slices.Backward(steps) { // the last first: each comes in front of the next
		if s.Key.front() && (s.Op == ledger.Add || s.Op == ledger.Change) {
			w.insert(s.Key, s.New)
		}
	}
	for _, s := range steps {
		w.removal(s)
	}
	w.line("COMMIT")
}

// chains prints the chains that are written whole: first their names, as rules lead
// to them. They are in the order of their names: libiptc keeps them so and looks
// each of them up among its neighbours, which takes a quarter of the time off a
// large first load.
func (w *writer) chains(steps []step) {
	var anew []*step
	for i := range steps {
		if whole(steps[i]) {
			anew = append(anew, &steps[i])
		}
	}
	slices.SortFunc(anew, func(a, b *step) int { return cmp.Compare(a.Key.chain, b.Key.chain) })
	for _, s := range anew {
		w.line(":"+s.Key.chain, "-", "[0:0]")
	}
	for _, s := range anew {
		w.each("-A", s.Key, s.New)
	}
}

// addition prints a change of single rules, except those that are added in front of
// rules of other Services.
func (w *writer) addition(s step) {
	k := s.Key
	added := s.Op == ledger.Add || s.Op == ledger.Change
	switch {
	case whole(s) || s.Op == ledger.Empty || s.Op == ledger.Remove && k.ours():
		return
	case s.Op != ledger.Add:
		w.each("-D", k, s.Old)
	}
	switch {
	case !added || k.front():
	case k.rule == "" && k.ours(), k.shared():
		w.each("-A", k, s.New)
	default:
		w.insert(k, s.New)
	}
}

// removal prints the deletion of single rules and of chains.
func (w *writer) removal(s step) {
	switch {
	case s.Op != ledger.Remove || !s.Key.ours():
	case s.Key.rule == "":
		w.line("-X", s.Key.chain)
	default:
		w.each("-D", s.Key, s.Old)
	}
}
