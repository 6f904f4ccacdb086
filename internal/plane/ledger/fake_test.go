package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// name is the key of an entry of the fake kernel.
type name struct {
	of kindOf
	id string
}

// kindOf says what an entry of the fake kernel is.
type kindOf uint8

const (
	row      kindOf = iota // a backend of one Service
	pool                   // something that several Services lead to
	frontend               // leads to rows and pools: its value names them
	refusal                // refuses an address except at its frontends; Services share it
)

func (k kindOf) String() string { return [...]string{"row", "pool", "frontend", "refusal"}[k] }

type (
	testEntry = Entry[name, string]
	testStep  = Step[name, string]
	testPlan  = Plan[name, string]
)

// The phases of the fake kernel.
const (
	added Phase = iota + 1
	refusalsGone
	switched
	refusalsAdded
	emptied
	gone
)

func newLedger() *Ledger[name, string] { return New[name, string](name.handling, name.compare) }

func (k name) handling() Handling {
	switch k.of {
	case row:
		return Handling{Add: added, Change: switched, Empty: emptied, Remove: gone, Target: true, Early: true}
	case pool:
		return Handling{Add: added, Change: switched, Remove: gone, Target: true, Shared: true}
	case refusal:
		return Handling{Add: refusalsAdded, Change: refusalsAdded, Remove: refusalsGone, Shared: true}
	case frontend:
	}
	return Handling{Add: switched, Change: switched, Remove: switched}
}

func (k name) compare(o name) int { return cmp.Or(cmp.Compare(k.of, o.of), cmp.Compare(k.id, o.id)) }

// fake is a kernel in memory. It commits the steps of one phase as a whole or not
// at all, and refuses what would lead nowhere.
type fake struct {
	entries map[name]string
	empty   map[name]bool
	room    int

	writes   int
	strict   bool   // an address is not refused without a frontend
	bad      string // refused wherever a value contains it; empty: nothing
	badKey   name   // refused; empty: nothing
	failAt   int    // the write that fails without an answer; 0: none
	before   bool   // the write that fails is not carried out
	log      []string
	wroteMax int // steps in one write
}

func newFake() *fake { return &fake{entries: map[name]string{}, empty: map[name]bool{}, room: 1 << 20} }

var (
	errInjected = errors.New("injected")
	errBad      = errors.New("the value is bad")
)

func (f *fake) Room() int { return f.room }

func (f *fake) Size(testStep) int { return 1 }

func (f *fake) Print(steps []*testStep) string {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%s %s %s %s\n", [...]string{"add", "change", "empty", "remove"}[s.Op], s.Key.of, s.Key.id, s.New)
	}
	return b.String()
}

func (f *fake) Write(_ context.Context, steps []*testStep) error {
	f.writes++
	f.wroteMax = max(f.wroteMax, len(steps))
	if f.writes == f.failAt && f.before {
		return errInjected
	}
	for len(steps) > 0 {
		n := slices.IndexFunc(steps, func(s *testStep) bool { return s.Phase != steps[0].Phase })
		if n < 0 {
			n = len(steps)
		}
		if n < len(steps) && steps[n].Phase < steps[0].Phase {
			return fmt.Errorf("phase %d comes after phase %d", steps[n].Phase, steps[0].Phase)
		}
		if err := f.commit(steps[:n]); err != nil {
			return &Refusal{Phase: steps[0].Phase, Err: err}
		}
		f.log = append(f.log, f.Print(steps[:n]))
		steps = steps[n:]
	}
	if f.writes == f.failAt {
		return errInjected
	}
	return nil
}

// commit carries out the steps of one phase: removals first, as keys may move.
func (f *fake) commit(steps []*testStep) error {
	entries, empty := maps.Clone(f.entries), maps.Clone(f.empty)
	for _, s := range steps {
		err := step(entries, empty, *s, f.bad)
		if s.Op == Add && s.Key == f.badKey && f.badKey.id != "" {
			err = errBad
		}
		if err != nil {
			return fmt.Errorf("%s: %w", strings.TrimSpace(f.Print([]*testStep{s})), err)
		}
	}
	for key, value := range entries {
		if key.of != frontend {
			continue
		}
		for _, to := range targets(value) {
			if _, there := entries[to]; !there || empty[to] {
				return fmt.Errorf("frontend %s leads to %s %s, which is missing or empty", key.id, to.of, to.id)
			}
		}
	}
	f.entries, f.empty = entries, empty
	return f.refusals()
}

// refusals wants a frontend at every refused address.
func (f *fake) refusals() error {
	for key := range f.entries {
		if !f.strict || key.of != refusal {
			continue
		}
		has := false
		for other := range f.entries {
			n, err := strconv.Atoi(other.id)
			has = has || other.of == frontend && err == nil && fmt.Sprint(n/4) == key.id
		}
		if !has {
			return fmt.Errorf("%s is refused, and has no frontend", key.id)
		}
	}
	return nil
}

func step(entries map[name]string, empty map[name]bool, s testStep, bad string) error {
	had, there := entries[s.Key]
	switch {
	case bad != "" && strings.Contains(s.New, bad):
		return errBad
	case (s.Op == Add) == there:
		return fmt.Errorf("it is there: %v", there)
	case s.Op == Change && s.Old != had:
		return fmt.Errorf("it was %q, not %q", had, s.Old)
	case s.Op == Empty:
		entries[s.Key], empty[s.Key] = "", true
	case s.Op == Remove:
		if (s.Key.of == row) != empty[s.Key] {
			return errors.New("it was not emptied")
		}
		delete(entries, s.Key)
		delete(empty, s.Key)
	default:
		entries[s.Key] = s.New
		delete(empty, s.Key)
	}
	return nil
}

// targets returns what a frontend leads to.
func targets(value string) []name {
	var list []name
	for word := range strings.FieldsSeq(value) {
		switch kind, id, _ := strings.Cut(word, ":"); kind {
		case "row":
			list = append(list, name{row, id})
		case "pool":
			list = append(list, name{pool, id})
		}
	}
	return list
}

// list returns a copy of what the fake holds.
func (f *fake) list() MapListing[name, string] { return maps.Clone(f.entries) }
