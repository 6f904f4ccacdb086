package app

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/testing/texttest"
)

// recordedEvents collects Events.
type recordedEvents struct {
	mu     sync.Mutex
	events []event.Event
}

func (r *recordedEvents) Record(e event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// The start and the end of a contest are logged once each. Events on the own Node name the
// program at the start and every ten minutes, and report the end.
func TestContestsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		state := func() health.Contest {
			if since := time.Since(began); since > 5*time.Second && since < 25*time.Minute {
				return health.Contest{Since: began, Repairs: 12, What: "table", By: "nft (thread 812)"}
			}
			return health.Contest{}
		}
		events, log := &recordedEvents{}, &texttest.Buffer{}
		o := options(t)
		o.Log = slog.New(slog.NewTextHandler(log, nil))
		r := newContestReporter(state, events, o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.run(ctx) }()
		for range 60 {
			r.edited()
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		var got []string
		for _, e := range events.events {
			if e.Object != (event.Object{}) {
				t.Errorf("an Event is about %+v, want the own Node", e.Object)
			}
			if e.Type == event.Warning && !strings.HasPrefix(e.Note, "nft (thread 812) repeatedly changed the rules of Sluice (last: table): rules were repaired 12 times. ") {
				t.Errorf("the note is %q", e.Note)
			}
			got = append(got, e.Reason)
		}
		want := "RulesContested RulesContested RulesContested RulesUncontested"
		if strings.Join(got, " ") != want {
			t.Errorf("recorded %v, want %s", got, want)
		}
		text := log.Take()
		if strings.Count(text, "\n") != 2 || !strings.Contains(text, `by="nft (thread 812)"`) || !strings.Contains(text, "no longer contested") {
			t.Errorf("logged:\n%s", text)
		}
	})
}

// Edits without a contest are not reported.
func TestEditsWithoutAContestAreNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, log := &recordedEvents{}, &texttest.Buffer{}
		o := options(t)
		o.Log = slog.New(slog.NewTextHandler(log, nil))
		r := newContestReporter(func() health.Contest { return health.Contest{} }, events, o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.run(ctx) }()
		for range 10 {
			r.edited()
			time.Sleep(time.Second)
		}
		cancel()
		if err := <-done; err != nil || len(events.events) > 0 || log.Take() != "" {
			t.Errorf("%v, recorded %v, logged %q", err, events.events, log.Take())
		}
	})
}
