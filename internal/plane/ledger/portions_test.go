package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// inParts plans a first load of Services with so many rows each, in parts of n Services.
func inParts(l *Ledger[name, string], k *fake, rows []int, n int) *Portions {
	users := func(key name) []cluster.Name {
		var list []cluster.Name
		for i, r := range rows {
			if key == (name{pool, fmt.Sprint(r)}) {
				list = append(list, nameOf(i))
			}
		}
		return list
	}
	return NewPortions(func(yield func(plane.Plan) bool) {
		p := l.Compare(k, k.list())
		for i, r := range rows {
			p.Users(users)
			p.Service(nameOf(i), nil, serving(i, r))
			switch {
			case i == len(rows)-1:
				p.End()
				yield(p)
			case i%n == n-1:
				next := p.Next(k)
				if !yield(p) {
					return
				}
				p = next
			}
		}
	})
}

// A first load in parts leaves the same in the kernel and in the ledger as one that is written as a whole.
func TestPortionsEqualTheWhole(t *testing.T) {
	rows := []int{2, 3, 2, 1, 3, 2, 4}
	whole, wholeKernel := newLedger(), newFake()
	p := whole.Compare(wholeKernel, wholeKernel.list())
	for i, n := range rows {
		p.Service(nameOf(i), nil, serving(i, n))
	}
	p.End()
	steps := p.Steps()
	apply(t, p)
	for n := 1; n <= len(rows); n++ {
		l, k := newLedger(), newFake()
		p := inParts(l, k, rows, n)
		apply(t, p)
		want(t, fmt.Sprint(k.entries), fmt.Sprint(wholeKernel.entries))
		want(t, fmt.Sprint(l.uses), fmt.Sprint(whole.uses))
		if p.Steps() != steps || p.Kept() != 0 || p.String() != "" {
			t.Errorf("parts of %d: %d steps, %d kept, %q; want %d steps", n, p.Steps(), p.Kept(), p, steps)
		}
	}
}

// Steps and String before Apply are those of all parts, and Apply then writes them.
func TestPortionsThatArePrinted(t *testing.T) {
	l, k := newLedger(), newFake()
	p := inParts(l, k, []int{2, 2, 3}, 1)
	text := p.String()
	if strings.Count(text, "add frontend") != 3 || p.Steps() == 0 || len(k.entries) != 0 || len(l.uses) != 0 {
		t.Errorf("%d steps:\n%s", p.Steps(), text)
	}
	apply(t, p)
	want(t, strings.Join(k.log, ""), text)
}

// A part is planned while the one before it is written.
func TestPortionsArePlannedAhead(t *testing.T) {
	planned := make(chan int, 3)
	var parts []plane.Plan
	for i := range 3 {
		parts = append(parts, writes(func(context.Context) error {
			if i == 2 {
				return nil
			}
			for {
				select {
				case n := <-planned:
					if n == i+1 {
						return nil
					}
				case <-time.After(30 * time.Second):
					return fmt.Errorf("part %d is not planned while part %d is written", i+1, i)
				}
			}
		}))
	}
	apply(t, NewPortions(func(yield func(plane.Plan) bool) {
		for i, p := range parts {
			planned <- i
			if !yield(p) {
				return
			}
		}
	}))
}

// After an error no further part is written, and no part is planned any more when Apply returns.
func TestPortionsEndWithAnError(t *testing.T) {
	failed := errors.New("failed")
	var planned, written int
	var parts iter.Seq[plane.Plan] = func(yield func(plane.Plan) bool) {
		for yield(writes(func(context.Context) error {
			if written++; written == 2 {
				return failed
			}
			return nil
		})) {
			planned++
		}
	}
	if err := NewPortions(parts).Apply(context.Background()); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if written != 2 || planned > 2 { // the race detector finds a planner that still runs
		t.Errorf("%d parts were written, %d planned", written, planned)
	}
}

// A shared entry that the kernel refuses is refused for the Services that need it, in all parts.
func TestARefusedSharedEntryOfPortions(t *testing.T) {
	rows := []int{2, 3, 2, 3, 1, 3}
	for n := 1; n <= len(rows); n++ {
		k := newFake()
		k.badKey = name{pool, "3"}
		l := newLedger()
		refused, is := errors.AsType[plane.Refused](inParts(l, k, rows, n).Apply(context.Background()))
		if !is || !slices.Equal(refused.Names(), []cluster.Name{nameOf(1), nameOf(3), nameOf(5)}) ||
			!errors.Is(refused[nameOf(3)], errBad) {
			t.Fatalf("parts of %d: refused %v, want svc-1, svc-3 and svc-5", n, refused)
		}
		for i, r := range rows {
			if _, there := k.entries[name{frontend, fmt.Sprint(i)}]; there != (r != 3) {
				t.Errorf("parts of %d: the frontend of svc-%d is there: %v", n, i, there)
			}
		}
		if l.uses[k.badKey] != 0 {
			t.Errorf("parts of %d: the ledger counts %d uses of the refused entry", n, l.uses[k.badKey])
		}
	}
}

// writes is a plan that a function writes.
type writes func(context.Context) error

func (writes) Steps() int                        { return 1 }
func (writes) Kept() int                         { return 0 }
func (writes) String() string                    { return "" }
func (w writes) Apply(ctx context.Context) error { return w(ctx) }
