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
	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// holders is a place that has had one holder after the other: nil, it is free.
type holders struct {
	lock
	until []time.Duration // each is there until then, after the start
	are   []error
	log   bytes.Buffer
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
	h.lock.log = slog.New(slog.NewTextHandler(&h.log, plain))
	h.listen = func(context.Context) (*control.Server, error) {
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

var other = &control.TakenError{PID: 7}

// waiting is the log of waiting for other.
func waiting(t *testing.T) string {
	t.Helper()
	name, err := netns.Name(0)
	if err != nil {
		t.Fatal(err)
	}
	return "level=INFO msg=\"Waiting for a Sluice that may be about to end\" pid=7 netns=" + name + "\n"
}

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
		"it is free": {nil, []error{nil}, true, nil, 0, ""},
		"not in this kernel": {nil, []error{control.ErrUnsupported}, false, nil, 0, "level=WARN " +
			"msg=\"Going on without a lock against a second Sluice; sluice get, status, diff and explain do not work\" error=\"" +
			control.ErrUnsupported.Error() + "\"\n"},
		"it cannot be":  {nil, []error{broken}, false, broken, 0, ""},
		"another stays": {nil, []error{other}, false, other, 10 * second, waiting(t)},
		"another ends": {
			[]time.Duration{3 * second},
			[]error{other, nil},
			true, nil, 3 * second,
			waiting(t),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				h := held(tt.until, tt.are...)
				server, err := h.acquireWithin(t.Context(), afterStop(stopTimeout))
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

// One that lives is told of at once, one that was killed is waited for.
func TestADyingDaemonIsWaitedFor(t *testing.T) {
	dying, living := &control.TakenError{PID: 7}, &control.TakenError{PID: 7, Holder: &control.Identity{}}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		server, err := held([]time.Duration{time.Second}, dying, nil).acquireWithin(t.Context(), afterKill)
		if server == nil || err != nil || time.Since(began) != time.Second {
			t.Errorf("after %v: %v, %v, want the place after a second", time.Since(began), server, err)
		}
		began = time.Now()
		if _, err := held(nil, dying).acquireWithin(t.Context(), afterKill); !errors.Is(err, dying) || time.Since(began) != killTimeout {
			t.Errorf("after %v: %v, want that it is taken after %v", time.Since(began), err, killTimeout)
		}
		began = time.Now()
		if _, err := held(nil, living).acquireWithin(t.Context(), afterKill); !errors.Is(err, living) || time.Since(began) != 0 {
			t.Errorf("after %v: %v, want that it is taken at once", time.Since(began), err)
		}
	})
}

func TestWaitingForThePlaceEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := held(nil, other).acquireWithin(ctx, afterStop(stopTimeout)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for another ended with %v", err)
		}
	})
}

// The process is not known if it is in another PID namespace.
func TestTheLogOfWaitingHasPlainValues(t *testing.T) {
	h := held(nil, other)
	h.logWait(t.Context(), &control.TakenError{})
	if got := h.log.String(); !strings.Contains(got, "pid=unknown netns=net:[") {
		t.Errorf("logged %q", got)
	}
}
