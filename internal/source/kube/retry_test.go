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

// A server that returns after an outage of any length gets a request within two seconds. An
// error that a server returns is not retried.
func TestRetriesUntilTheServerAnswers(t *testing.T) {
	gone := &url.Error{Op: "Get", URL: "https://a/b", Err: syscall.ECONNREFUSED}
	synctest.Test(t, func(t *testing.T) {
		pace := newRetries()
		began, requests := time.Now(), 0
		reply, err := retryUnanswered(t.Context(), pace, func() (string, error) {
			if requests++; time.Since(began) < time.Hour {
				return "", gone
			}
			return "reply", nil
		})
		if took := time.Since(began); reply != "reply" || err != nil || took > time.Hour+2*time.Second {
			t.Errorf("got %q, %v after %v", reply, err, took)
		}
		if most := 3600 + 10; requests > most {
			t.Errorf("%d requests in an hour, want at most %d", requests, most)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = retryUnanswered(ctx, pace, func() (int, error) { return 0, gone })
		if !errors.Is(err, gone) || ctx.Err() == nil {
			t.Errorf("the end of the context: %v", err)
		}
		requests = 0
		_, err = retryUnanswered(t.Context(), pace, func() (int, error) { requests++; return 0, io.EOF })
		if !errors.Is(err, io.EOF) || requests != 1 {
			t.Errorf("another error: %d requests, %v", requests, err)
		}
	})
}

// Of all feeds that wait for a server only one sends requests, and all succeed when it is
// back. A slow server does not get another request at once.
func TestOneFeedRetriesForAllFeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := newRetries()
		back := time.Now().Add(time.Hour)
		var requests, served atomic.Int32
		for range 4 {
			go func() {
				_, err := retryUnanswered(t.Context(), pace, func() (int, error) {
					requests.Add(1)
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
		if n := requests.Load(); n > 3700 {
			t.Errorf("%d requests in an hour, want those of one feed", n)
		}
		time.Sleep(3 * time.Second)
		if n := served.Load(); n != 4 {
			t.Errorf("%d of 4 succeeded within 3 s after the server was back", n)
		}
	})
	requests := 0
	slow := &url.Error{Op: "Get", URL: "https://a/b", Err: context.DeadlineExceeded}
	_, err := retryUnanswered(t.Context(), newRetries(), func() (int, error) { requests++; return 0, slow })
	if !errors.Is(err, slow) || requests != 1 {
		t.Errorf("a slow server got %d requests (%v), want one", requests, err)
	}
}

// shortenPauses makes a Source retry sooner than it does with a real server.
func shortenPauses(s *Source) {
	s.pause.Duration /= 20
	s.health.retries.pause.Duration /= 20
	s.health.retries.pause.Cap /= 20
}
