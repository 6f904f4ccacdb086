package plane

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/route"
)

// A mechanism that reports no edits may have been edited in each period.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began, subscribed := time.Now(), make(chan struct{})
		reports, ended := make(chan time.Duration, 3), make(chan error, 1)
		go func() {
			ended <- Poll(ctx, time.Minute, func() { close(subscribed) }, func(e Edit) {
				if e != (Edit{Possible: true}) {
					t.Errorf("reports %+v, want a possible edit", e)
				}
				reports <- time.Since(began)
			})
		}()
		<-subscribed
		time.Sleep(2*time.Minute + time.Second)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
		close(reports)
		var at []time.Duration
		for after := range reports {
			at = append(at, after)
		}
		if want := []time.Duration{time.Minute, 2 * time.Minute}; !slices.Equal(at, want) {
			t.Errorf("reported after %v, want %v", at, want)
		}
	})
}

func TestFamiliesOfSupport(t *testing.T) {
	for s, want := range map[[2]bool][]route.Family{
		{true, true}: {route.IPv4, route.IPv6}, {true, false}: {route.IPv4}, {false, true}: {route.IPv6}, {}: nil,
	} {
		if got := (Support{IPv4: s[0], IPv6: s[1]}).Families(); !slices.Equal(got, want) {
			t.Errorf("%v: families %v, want %v", s, got, want)
		}
	}
}

func TestMetricsOfAllParts(t *testing.T) {
	a := prometheus.NewCounter(prometheus.CounterOpts{Name: "a"})
	b := prometheus.NewCounter(prometheus.CounterOpts{Name: "b"})
	o := &Opened{Parts: []Part{{Metrics: []prometheus.Collector{a}}, {}, {Metrics: []prometheus.Collector{b}}}}
	if got := o.Metrics(); !slices.Equal(got, []prometheus.Collector{a, b}) {
		t.Errorf("got %v, want those of all parts", got)
	}
}
