package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// scrape returns the connections by Service; "" is the series of all others.
func scrape(t *testing.T, m *Meter, routes *route.Snapshot) map[string]uint64 {
	t.Helper()
	all, err := m.Scrape(t.Context(), routes)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, s := range all {
		got[s.Port.Service.Name] = s.Counters[plane.Connections]
	}
	return got
}

// A port gets a series at its first scrape with connections. It begins at 0: earlier connections remain in the sum of
// the others.
func TestSeriesBegin(t *testing.T) {
	c := &counts{}
	m, routes := NewMeter(c.options()), services(t, []string{"api", "idle", "web"}, web1)
	for i, step := range []struct{ web, api uint64 }{{100, 0}, {110, 7}, {111, 17}} {
		c.set("web", step.web)
		if step.api > 0 {
			c.set("api", step.api)
		}
		want := []map[string]uint64{
			{"": 0, "web": 0}, {"": 7, "web": 10, "api": 0}, {"": 7, "web": 11, "api": 10},
		}[i]
		if got := scrape(t, m, routes); !reflect.DeepEqual(got, want) {
			t.Errorf("scrape %d: got %v, want %v", i, got, want)
		}
	}
	all, _ := m.Scrape(t.Context(), routes)
	want := Series{named("web"), 80, plane.Traffic{plane.Connections: 11, plane.Unanswered: 0, plane.Refusals: 0}}
	if !reflect.DeepEqual(all[1], want) {
		t.Errorf("got %+v, want %+v", all[1], want)
	}
}

// If there are more ports than series, the busiest ports have one. A port that becomes busy replaces the least busy
// one, but only after that has had its series for an hour.
func TestSeriesOfTheBusiest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counts{}
		var names []string
		for i := range maxSeries + 10 {
			names = append(names, numbered(i))
		}
		m, routes := NewMeter(c.options()), services(t, names, web1)
		sums := map[string]uint64{}
		grow := func(name string, n uint64) {
			sums[name] += n
			c.set(name, sums[name])
		}
		for i, name := range names {
			grow(name, uint64(100+i))
		}
		got := scrape(t, m, routes)
		for i, name := range names {
			if _, has := got[name]; has != (i >= 10) || len(got) != maxSeries+1 {
				t.Errorf("%s has a series: %t; there are %d", name, has, len(got))
			}
		}
		late, weakest := numbered(0), numbered(10)
		for range 5 {
			grow(late, 1000)
			if _, has := scrape(t, m, routes)[late]; has {
				t.Error("a series was replaced at once")
			}
		}
		time.Sleep(seriesAge)
		grow(late, 1000)
		grow(weakest, 1)
		for _, name := range names[11:] {
			grow(name, 100)
		}
		got = scrape(t, m, routes)
		if _, has := got[weakest]; has || got[late] != 0 || len(got) != maxSeries+1 {
			t.Errorf("got %v", got)
		}
		if want := uint64(6*1000 + 1); got[""] != want {
			t.Errorf("the others have %d, want %d", got[""], want)
		}
	})
}

// The increases of all series add up to those of the node, whichever ports have series, and none is negative.
func TestNoConnectionIsLostOrCountedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(3, 4))
		c := &counts{}
		var names []string
		for i := range 3 * maxSeries {
			names = append(names, numbered(i))
		}
		m, routes := NewMeter(c.options()), services(t, names, web1)
		sums, last := map[string]uint64{}, map[string]uint64{}
		replaced := 0
		for step := range 200 {
			var grown, seen uint64
			for range 100 {
				name := names[(random.IntN(maxSeries)+step)%len(names)] // the busy ones change slowly
				n := random.Uint64N(50)
				sums[name] += n
				c.set(name, sums[name])
				grown += n
			}
			now := scrape(t, m, routes)
			for name, n := range now {
				was, had := last[name]
				if had && n < was {
					t.Fatalf("step %d: %s fell from %d to %d", step, name, was, n)
				}
				seen += n - was
			}
			// The last increase of a series that ends is part of the others, which this sum has.
			for name := range last {
				if _, has := now[name]; !has {
					replaced++
				}
			}
			if step > 0 && seen != grown {
				t.Fatalf("step %d: the series grew by %d, want %d", step, seen, grown)
			}
			last = now
			time.Sleep(seriesAge / 5)
		}
		if replaced == 0 {
			t.Error("no series was replaced")
		}
	})
}

// BenchmarkScrape measures a scrape of 10,000 Services with 3 backends, without the plane (BenchmarkTraffic of package
// nftables). All Services have new connections, and the backend that they share has failures.
func BenchmarkScrape(b *testing.B) {
	const n = 10_000
	var names []string
	for i := range n {
		names = append(names, numbered(i))
	}
	routes := services(b, names, web1, web2, "10.244.3.3")
	all := make(plane.Counted, n)
	for svc := range routes.Services() {
		all[svc.Ports[0].ID(svc.Name)] = plane.PortTraffic{Traffic: plane.Traffic{plane.Connections: 0}}
	}
	var round uint64
	read := func(context.Context, *route.Snapshot) (plane.Counted, error) {
		round++
		for _, of := range all {
			of.Traffic[plane.Connections] = 3 * round
		}
		return all, nil
	}
	failed := func() map[plane.Target]plane.Failed {
		return map[plane.Target]plane.Failed{target(web1): {Unanswered: round, Refused: round}}
	}
	m := NewMeter(MeterOptions{Traffic: read, Failed: failed})
	b.ReportAllocs()
	for b.Loop() {
		if all, err := m.Scrape(b.Context(), routes); err != nil || len(all) != maxSeries+1 {
			b.Fatal(len(all), err)
		}
	}
}

// BenchmarkListing measures counting 100,000 entries, without the kernel.
func BenchmarkListing(b *testing.B) {
	var names []string
	for i := range 10_000 {
		names = append(names, numbered(i))
	}
	routes := services(b, names, web1, web2)
	for b.Loop() {
		f := newFlows(routes, plane.Translated)
		for i := range uint32(100_000) {
			e := to(client, webIP, web1)
			e.OrigSrc = netip.AddrPortFrom(addr(i%50_000), 40000)
			f.add(e)
		}
		if l := f.listing(); l.Entries != 100_000 {
			b.Fatal(fmt.Sprint(l))
		}
	}
}
