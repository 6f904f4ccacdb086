package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// writingLoop is a loop that makes a write before each of the first Views, and a plane
// whose kernel differs by some steps.
type writingLoop struct {
	plane.Plane

	left, writes uint64
	steps        int
	reads        int
	refuse       error
}

func (w *writingLoop) View(context.Context) (proxy.View, error) {
	if w.left > 0 {
		w.left--
		w.writes++
	}
	return proxy.View{Routes: route.NewCompiler(route.Options{}).Snapshot(), Writes: w.writes}, nil
}

func (w *writingLoop) Refresh(context.Context) error {
	w.reads++
	return w.refuse
}

func (w *writingLoop) Plan(route.Change) plane.Plan { return steps(w.steps) }

type steps int

func (s steps) Steps() int                { return int(s) }
func (steps) Kept() int                   { return 0 }
func (steps) String() string              { return "add a\n" }
func (steps) Apply(context.Context) error { return errors.New("a comparison must not write") }

// A difference counts only if nothing was written during the comparison, as it may be one that the write has just made.
func TestADifferenceDuringAWriteDoesNotCount(t *testing.T) {
	broken := errors.New("read kernel state: no")
	for _, tt := range []struct {
		name    string
		kernel  writingLoop
		want    plane.Plan
		wantErr error
		reads   int
	}{
		{"nothing is written", writingLoop{steps: 1}, steps(1), nil, 1},
		{"writes end", writingLoop{steps: 1, left: 6}, steps(1), nil, 4},
		{"equal during writes", writingLoop{left: 1 << 32}, steps(0), nil, 1},
		{"writes continue", writingLoop{steps: 1, left: 1 << 32}, nil, errWriting, diffAttempts},
		{"the kernel cannot be read", writingLoop{steps: 1, refuse: broken}, nil, broken, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := differ{&tt.kernel, &tt.kernel}.compare(t.Context())
				if got != tt.want || !errors.Is(err, tt.wantErr) || tt.kernel.reads != tt.reads {
					t.Errorf("%+v, %v after %d reads, want %+v, %v after %d", got, err, tt.kernel.reads, tt.want, tt.wantErr, tt.reads)
				}
			})
		})
	}
}

func TestAComparisonEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), diffPause/100)
		defer cancel()
		kernel := &writingLoop{steps: 1, left: 1 << 32}
		if _, err := (differ{kernel, kernel}).compare(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v, want the end of the context", err)
		}
	})
}
