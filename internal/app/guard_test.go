package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// compared notes when and why everything was compared.
type compared struct {
	mu  sync.Mutex
	at  []time.Time
	why []proxy.Cause
}

func (c *compared) Compare(_ context.Context, why proxy.Cause) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.why = append(c.at, time.Now()), append(c.why, why)
	return nil
}

// times returns when that was.
func (c *compared) times() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.at)
}

// journal is a log that is read while it is written.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

// said returns what was logged since it was last called.
func (j *journal) said() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.b.Reset()
	return j.b.String()
}

func guarded(t *testing.T) (*guard, *compared, *journal) {
	t.Helper()
	seen, log := &compared{}, &journal{}
	g := newGuard(seen, slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the guard ended with: %v", err)
		}
	})
	return g, seen, log
}

func TestAnEditIsPutRightAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, seen, log := guarded(t)
		time.Sleep(time.Minute)
		began := time.Now()
		g.edited(plane.Edit{What: "chain, rule", By: "nft (thread 812)"})
		synctest.Wait()
		if len(seen.times()) != 1 || !seen.times()[0].Equal(began) || seen.why[0] != proxy.ForeignEdit {
			t.Errorf("compared at %v because of %v, want once, at once", seen.times(), seen.why)
		}
		said := log.said()
		for _, want := range []string{"chain, rule", "nft (thread 812)"} {
			if !strings.Contains(said, want) {
				t.Errorf("the log does not say %q:\n%s", want, said)
			}
		}
		time.Sleep(2 * calmAfter)
		synctest.Wait()
		if said := log.said(); said != "" {
			t.Errorf("the end of what was put right at once is worth a line:\n%s", said)
		}
	})
}

// Who keeps changing our rules does not keep us busy, and is told of once.
func TestAFightCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, seen, log := guarded(t)
		for range 1000 {
			g.edited(plane.Edit{What: "table", By: "other"})
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(seen.times()); n < mostAtOnce+8 || n > mostAtOnce+11 {
			t.Errorf("compared %d times in 10 s, want %d at once and then one a second", n, mostAtOnce)
		}
		fight := log.said()
		if n := strings.Count(fight, "\n"); n != mostAtOnce {
			t.Errorf("logged %d lines, want %d:\n%s", n, mostAtOnce, fight)
		}
		if n := strings.Count(fight, "keeps changing"); n != 1 {
			t.Errorf("said %d times that it goes on, want once", n)
		}
		// When it is over, that is said once, and all is as before.
		time.Sleep(2 * calmAfter)
		synctest.Wait()
		want := fmt.Sprintf("level=INFO msg=\"No program changes our rules any more\" repairs=%d\n", len(seen.times()))
		if _, said, _ := strings.Cut(log.said(), " "); said != want {
			t.Errorf("when it is over it says %q, want %q", said, want)
		}
		before := len(seen.times())
		g.edited(plane.Edit{What: "table", By: "other"})
		synctest.Wait()
		if len(seen.times()) != before+1 {
			t.Error("an edit after a long quiet is not put right at once")
		}
	})
}

// Who changes our rules now and then, however often, waits for nobody.
func TestEditsFarApartArePutRightAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, seen, _ := guarded(t)
		for n := range 3 * mostAtOnce {
			time.Sleep(pause)
			began := time.Now()
			g.edited(plane.Edit{What: "table", By: "other"})
			synctest.Wait()
			if len(seen.times()) != n+1 || !seen.times()[n].Equal(began) {
				t.Fatalf("edit %d of %s: compared at %v", n, began, seen.times())
			}
		}
	})
}

func TestEverythingIsComparedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, seen, log := guarded(t)
		time.Sleep(5*time.Hour + time.Minute)
		synctest.Wait()
		if len(seen.why) != 5 || seen.why[0] != proxy.Period {
			t.Errorf("compared because of %v, want once an hour", seen.why)
		}
		if said := log.said(); said != "" {
			t.Errorf("logged on a quiet node:\n%s", said)
		}
	})
}
