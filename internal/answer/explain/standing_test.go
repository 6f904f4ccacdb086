package explain

import (
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

func TestStanding(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	at := func(seconds time.Duration) time.Time { return now.Add(seconds * time.Second) }
	for want, s := range map[string]*cluster.Share{
		"": nil,
		"ejected for 4s: 7 connections of 3 clients failed; next trial in 6s": {
			Since: at(-4), Next: at(6), Failures: 7, Clients: 3,
		},
		"ejected for 1m: 1 connection of 1 client failed; next trial in 0s": {
			Since: at(-60), Next: at(-1), Failures: 1, Clients: 1,
		},
		"on trial for 2s with 1/16 of its share: before, 5 connections of 1 client failed": {
			Part: 1, Since: at(-2), Failures: 5, Clients: 1,
		},
		"on trial for 2s, waiting for the outcome of its connections: before, 5 connections of 1 client failed": {
			Since: at(-2), Failures: 5, Clients: 1,
		},
		"has 4/16 of its share, more in 3s: before, 7 connections of 3 clients failed": {
			Part: 4, Since: at(-1), Next: at(3), Failures: 7, Clients: 3,
		},
	} {
		if got := Standing(s, now); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
	c := route.Choice{Reason: route.NotReady, Share: &cluster.Share{}}
	if got := Reason(c, now); got != "not ready" {
		t.Errorf("of an endpoint that is not ready: %q", got)
	}
}
