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

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// fakeLock is a lock with several holders, one after the other; nil: the lock is free.
type fakeLock struct {
	lock
	until []time.Duration // when each holder ends, after the start
	errs  []error         // result of listen while each holds the lock
	log   bytes.Buffer
}

// held returns a lock with these holders. Each ends after its time; the last stays.
func held(until []time.Duration, errs ...error) *fakeLock {
	h := &fakeLock{until: until, errs: errs}
	began := time.Now()
	plain := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	h.lock.log = slog.New(slog.NewTextHandler(&h.log, plain))
	h.listen = func(context.Context) (*admin.Server, error) {
		now := 0
		for now < len(until) && time.Since(began) >= until[now] {
			now++
		}
		if errs[now] != nil {
			return nil, errs[now]
		}
		return &admin.Server{}, nil
	}
	return h
}

var other = &admin.TakenError{PID: 7}

// waiting is the log of waiting for other.
func waiting(t *testing.T) string {
	t.Helper()
	name, err := netns.Name(0)
	if err != nil {
		t.Fatal(err)
	}
	return "level=INFO msg=\"Waiting for another Sluice, which may be stopping\" pid=7 netns=" + name + "\n"
}

func TestAcquiringTheLock(t *testing.T) {
	broken := errors.New("cut off")
	const second = time.Second
	for name, tt := range map[string]struct {
		until []time.Duration
		errs  []error
		held  bool
		err   error
		took  time.Duration
		log   string
	}{
		"free": {nil, []error{nil}, true, nil, 0, ""},
		"not supported by this kernel": {nil, []error{admin.ErrUnsupported}, false, nil, 0, "level=WARN " +
			"msg=\"Serving without a lock that keeps other Sluices away; " +
			"sluice get, status, diff and explain do not work\" error=\"" +
			admin.ErrUnsupported.Error() + "\"\n"},
		"an error":      {nil, []error{broken}, false, broken, 0, ""},
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
				h := held(tt.until, tt.errs...)
				server, err := h.acquireWithin(t.Context(), stopTimeout)
				if (server != nil) != tt.held || !errors.Is(err, tt.err) || time.Since(began) != tt.took {
					t.Errorf("after %v: %v, %v, want it held %v, %v, after %v", time.Since(began), server, err, tt.held, tt.err,
						tt.took)
				}
				if h.log.String() != tt.log {
					t.Errorf("logged:\n%s\nwant:\n%s", &h.log, tt.log)
				}
			})
		})
	}
}

func TestWaitingForTheLockEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := held(nil, other).acquireWithin(ctx, stopTimeout); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for another ended with %v", err)
		}
	})
}

// The process is not known if it is in another PID namespace.
func TestTheLogOfWaitingHasPlainValues(t *testing.T) {
	h := held(nil, other)
	h.logWait(t.Context(), &admin.TakenError{})
	if got := h.log.String(); !strings.Contains(got, "pid=unknown netns=net:[") {
		t.Errorf("logged %q", got)
	}
}
