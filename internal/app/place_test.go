package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/control"
)

// holders is a place that has had one holder after the other: nil, it is free.
type holders struct {
	place
	until []time.Duration // each is there until then, after the start
	are   []error
	log   bytes.Buffer
	tries int
}

// held returns a place with holders, each until a time after now; the last stays.
func held(until []time.Duration, are ...error) *holders {
	h := &holders{until: until, are: are}
	began := time.Now()
	plain := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	h.place.log = slog.New(slog.NewTextHandler(&h.log, plain))
	h.listen = func(context.Context) (*control.Server, error) {
		h.tries++
		now := 0
		for now < len(until) && time.Since(began) >= until[now] {
			now++
		}
		if are[now] != nil {
			return nil, are[now]
		}
		return &control.Server{}, nil
	}
	return h
}

var (
	other    = &control.TakenError{PID: 7}
	stranger = &control.OccupiedError{PID: 8, UID: 1000}
)

const (
	otherSaid    = `"another Sluice (pid 7) already serves this network namespace; stop it first"`
	strangerSaid = `"control socket @sluice-proxy/sluice is held by a process of uid 1000 (pid 8), which is no Sluice; until it ends, sluice get, status, diff and explain do not work"`
)

func TestTakingThePlace(t *testing.T) {
	broken := errors.New("cut off")
	const second = time.Second
	for name, tt := range map[string]struct {
		until []time.Duration
		are   []error
		held  bool
		err   error
		took  time.Duration
		log   string
	}{
		"it is free":    {nil, []error{nil}, true, nil, 0, ""},
		"a stranger's":  {nil, []error{stranger}, false, nil, 0, "level=WARN msg=\"Going on without the control socket\" error=" + strangerSaid + "\n"},
		"it cannot be":  {nil, []error{broken}, false, broken, 0, ""},
		"another stays": {nil, []error{other}, false, other, 10 * second, "level=INFO msg=\"Waiting for a Sluice that may be about to end\" holder=" + otherSaid + "\n"},
		"another ends": {
			[]time.Duration{3 * second},
			[]error{other, nil},
			true, nil, 3 * second,
			"level=INFO msg=\"Waiting for a Sluice that may be about to end\" holder=" + otherSaid + "\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				h := held(tt.until, tt.are...)
				server, err := h.takeAfter(t.Context(), endingTime)
				if (server != nil) != tt.held || !errors.Is(err, tt.err) || time.Since(began) != tt.took {
					t.Errorf("after %v: %v, %v, want it held %v, %v, after %v", time.Since(began), server, err, tt.held, tt.err, tt.took)
				}
				if h.log.String() != tt.log {
					t.Errorf("logged:\n%s\nwant:\n%s", &h.log, tt.log)
				}
			})
		})
	}
}

func TestWaitingForThePlaceEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := held(nil, other).takeAfter(ctx, endingTime); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for another ended with %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		h := held(nil, stranger)
		if server := h.takeOnceFree(ctx); server != nil || h.tries != 119 && h.tries != 120 {
			t.Errorf("in an hour %d tries for %v, want one each %v", h.tries, server, againAfter)
		}
		if h.log.Len() > 0 {
			t.Errorf("what is known is logged again:\n%s", &h.log)
		}
	})
}

// A stranger that goes is followed by another Sluice, which is told of once, and
// when that has gone as well this daemon can be asked.
func TestThePlaceIsTakenOnceItIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		h := held([]time.Duration{10 * time.Minute, 20 * time.Minute}, stranger, other, nil)
		if server := h.takeOnceFree(t.Context()); server == nil || time.Since(began) != 20*time.Minute {
			t.Errorf("taken after %v: %v", time.Since(began), server)
		}
		want := "level=ERROR msg=\"Cannot take the control socket, serving goes on without\" error=" + otherSaid + "\n" +
			"level=INFO msg=\"The control socket is free again, this daemon can be asked\"\n"
		if got := h.log.String(); got != want {
			t.Errorf("logged:\n%s\nwant:\n%s", strings.TrimSpace(got), want)
		}
	})
}
