package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// writing is a loop that writes before every look, so many times, and a plane
// over a kernel that differs by some steps.
type writing struct {
	plane.Plane

	left, writes uint64
	steps        int
	looks        int
	refuse       error
}

func (w *writing) View(context.Context) (proxy.View, error) {
	if w.left > 0 {
		w.left--
		w.writes++
	}
	return proxy.View{Routes: route.NewCompiler(route.Options{}).Snapshot(), Writes: w.writes}, nil
}

func (w *writing) Refresh(context.Context) error {
	w.looks++
	return w.refuse
}

func (w *writing) Plan(route.Change) plane.Plan { return steps(w.steps) }

type steps int

func (s steps) Steps() int                { return int(s) }
func (steps) Kept() int                   { return 0 }
func (steps) String() string              { return "add a\n" }
func (steps) Apply(context.Context) error { return errors.New("a look writes nothing") }

// What was seen across a write is no difference, but perhaps one that was just
// made: nothing is said before it was seen between two.
func TestADifferenceIsOfOneMoment(t *testing.T) {
	broken := errors.New("read kernel state: no")
	for _, tt := range []struct {
		name    string
		kernel  writing
		want    inspect.Difference
		wantErr error
		looks   int
	}{
		{"nothing is written", writing{steps: 1}, inspect.Difference{Steps: 1, Text: "add a\n"}, nil, 1},
		{"it ends", writing{steps: 1, left: 6}, inspect.Difference{Steps: 1, Text: "add a\n"}, nil, 4},
		{"equal all the same", writing{left: 1 << 32}, inspect.Difference{Text: "add a\n"}, nil, 1},
		{"it goes on", writing{steps: 1, left: 1 << 32}, inspect.Difference{}, errWriting, diffAttempts},
		{"the kernel cannot be read", writing{steps: 1, refuse: broken}, inspect.Difference{}, broken, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := differ{&tt.kernel, &tt.kernel}.compare(t.Context())
				if got != tt.want || !errors.Is(err, tt.wantErr) || tt.kernel.looks != tt.looks {
					t.Errorf("%+v, %v after %d looks, want %+v, %v after %d", got, err, tt.kernel.looks, tt.want, tt.wantErr, tt.looks)
				}
			})
		})
	}
}

func TestNobodyWaitsForADifferenceWhoHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), diffPause/100)
		defer cancel()
		kernel := &writing{steps: 1, left: 1 << 32}
		if _, err := (differ{kernel, kernel}).compare(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v, want the end of the context", err)
		}
	})
}
