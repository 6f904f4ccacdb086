package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// compared notes when and why everything was compared.
type compared struct {
	at  []time.Time
	why []proxy.Cause
}

func (c *compared) Compare(_ context.Context, why proxy.Cause) error {
	c.at, c.why = append(c.at, time.Now()), append(c.why, why)
	return nil
}

func guarded(t *testing.T) (*guard, *compared, *bytes.Buffer) {
	t.Helper()
	seen, log := &compared{}, &bytes.Buffer{}
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
		if len(seen.at) != 1 || !seen.at[0].Equal(began) || seen.why[0] != proxy.ForeignEdit {
			t.Errorf("compared at %v because of %v, want once, at once", seen.at, seen.why)
		}
		for _, want := range []string{"chain, rule", "nft (thread 812)"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, log)
			}
		}
		log.Reset()
		time.Sleep(2 * calmAfter)
		if log.Len() > 0 {
			t.Errorf("the end of what was put right at once is worth a line:\n%s", log)
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
		if n := len(seen.at); n < mostAtOnce+8 || n > mostAtOnce+11 {
			t.Errorf("compared %d times in 10 s, want %d at once and then one a second", n, mostAtOnce)
		}
		if n := strings.Count(log.String(), "\n"); n != mostAtOnce {
			t.Errorf("logged %d lines, want %d:\n%s", n, mostAtOnce, log)
		}
		if n := strings.Count(log.String(), "keeps changing"); n != 1 {
			t.Errorf("said %d times that it goes on, want once", n)
		}
		// When it is over, that is said once, and all is as before.
		log.Reset()
		time.Sleep(2 * calmAfter)
		want := fmt.Sprintf("level=INFO msg=\"No program changes our rules any more\" repairs=%d\n", len(seen.at))
		if _, said, _ := strings.Cut(log.String(), " "); said != want {
			t.Errorf("when it is over it says %q, want %q", said, want)
		}
		before := len(seen.at)
		g.edited(plane.Edit{What: "table", By: "other"})
		synctest.Wait()
		if len(seen.at) != before+1 {
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
			if len(seen.at) != n+1 || !seen.at[n].Equal(began) {
				t.Fatalf("edit %d of %s: compared at %v", n, began, seen.at)
			}
		}
	})
}

func TestEverythingIsComparedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, seen, log := guarded(t)
		time.Sleep(5*time.Hour + time.Minute)
		if len(seen.why) != 5 || seen.why[0] != proxy.Period {
			t.Errorf("compared because of %v, want once an hour", seen.why)
		}
		if log.Len() > 0 {
			t.Errorf("logged on a quiet node:\n%s", log)
		}
	})
}
