package proxy

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

func TestRepairs(t *testing.T) {
	broken := errors.New("no memory")
	for _, tt := range []struct {
		sync Sync
		want bool
	}{
		{Sync{Cause: Change, Steps: 1}, false},
		{Sync{Cause: Start, Steps: 1}, false},
		{Sync{Cause: Failure, Steps: 1}, true},
		{Sync{Cause: ForeignEdit, Steps: 1}, true},
		{Sync{Cause: Request, Steps: 1}, true},
		{Sync{Cause: Period, Steps: 1}, true},
		{Sync{Cause: ForeignEdit}, false},
		{Sync{Cause: ForeignEdit, Steps: 1, Err: broken}, false},
	} {
		if got := tt.sync.Repair(); got != tt.want {
			t.Errorf("%s of %d steps (%v) is a repair: %v, want %v", tt.sync.Cause, tt.sync.Steps, tt.sync.Err, got, tt.want)
		}
	}
	if got, want := RepairCauses(), []Cause{Failure, ForeignEdit, Request, Period}; !slices.Equal(got, want) {
		t.Errorf("repairs are counted for %v, want %v", got, want)
	}
}

// A first load is not a repair, however many attempts it takes.
func TestAStartThatFailsIsStillAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.plane.applyErrs = []error{errors.New("no memory")}
		w.setService("a", 1)
		w.listed()
		w.advance(firstRetry)
		synctest.Wait()
		var causes []Cause
		for _, s := range w.syncs {
			causes = append(causes, s.Cause)
			if s.Repair() {
				t.Errorf("%+v counts as a repair", s)
			}
		}
		if want := []Cause{Start, Start}; !slices.Equal(causes, want) {
			t.Errorf("written because of %v, want %v", causes, want)
		}
	})
}
