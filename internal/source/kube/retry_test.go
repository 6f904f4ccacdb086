package kube

import (
	"context"
	"errors"
	"io"
	"net/url"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A server that comes back after an outage of any length gets a request within two
// seconds. An error of a server that answers is not retried.
func TestRetriesUntilTheServerAnswers(t *testing.T) {
	gone := &url.Error{Op: "Get", URL: "https://a/b", Err: syscall.ECONNREFUSED}
	synctest.Test(t, func(t *testing.T) {
		pace := newRetries()
		began, asked := time.Now(), 0
		answer, err := retryUnanswered(t.Context(), pace, func() (string, error) {
			if asked++; time.Since(began) < time.Hour {
				return "", gone
			}
			return "here", nil
		})
		if took := time.Since(began); answer != "here" || err != nil || took > time.Hour+2*time.Second {
			t.Errorf("got %q, %v after %v", answer, err, took)
		}
		if most := 3600 + 10; asked > most {
			t.Errorf("asked %d times in an hour, want at most %d", asked, most)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := retryUnanswered(ctx, pace, func() (int, error) { return 0, gone }); !errors.Is(err, gone) || ctx.Err() == nil {
			t.Errorf("the end of the context: %v", err)
		}
		asked = 0
		if _, err := retryUnanswered(t.Context(), pace, func() (int, error) { asked++; return 0, io.EOF }); !errors.Is(err, io.EOF) || asked != 1 {
			t.Errorf("another error: asked %d times, %v", asked, err)
		}
	})
}

// Of all feeds that wait for a server only one sends requests at a time, and all are
// served when it is back. A slow server does not get another request at once.
func TestOneFeedRetriesForAllFeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := newRetries()
		back := time.Now().Add(time.Hour)
		var asked, served atomic.Int32
		for range 4 {
			go func() {
				_, err := retryUnanswered(t.Context(), pace, func() (int, error) {
					asked.Add(1)
					if time.Now().Before(back) {
						return 0, &url.Error{Op: "Get", URL: "https://a/b", Err: syscall.ECONNREFUSED}
					}
					return 0, nil
				})
				if err == nil {
					served.Add(1)
				}
			}()
		}
		time.Sleep(time.Hour)
		if n := asked.Load(); n > 3700 {
			t.Errorf("asked %d times in an hour, want one for all", n)
		}
		time.Sleep(3 * time.Second)
		if n := served.Load(); n != 4 {
			t.Errorf("%d of 4 were served within 3 s of the server's coming", n)
		}
	})
	asked := 0
	slow := &url.Error{Op: "Get", URL: "https://a/b", Err: context.DeadlineExceeded}
	if _, err := retryUnanswered(t.Context(), newRetries(), func() (int, error) { asked++; return 0, slow }); !errors.Is(err, slow) || asked != 1 {
		t.Errorf("a slow server was asked %d times (%v), want once", asked, err)
	}
}

// shortenPauses makes a Source retry sooner than it does with a real server.
func shortenPauses(s *Source) {
	for i := range s.feeds {
		s.feeds[i].pause.Duration /= 20
	}
	s.health.retries.pause.Duration /= 20
	s.health.retries.pause.Cap /= 20
}
