package health

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

const period = 30 * time.Second // so that a write is overdue after a minute

func both() []route.Family { return route.Families() }

// text prints a verdict without its times.
func (v Verdict) text() string {
	return fmt.Sprintf("started=%v live=%v eligible=%v ready=%v %v", v.Started, v.Live, v.Eligible,
		(v.Summary().State == Healthy), v.Families)
}

func TestVerdictFollowsFromFacts(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	here := &cluster.Node{Name: "a"}
	for _, tt := range []struct {
		name  string
		facts facts
		want  string
	}{
		{
			"the run before was well, and nothing is listed yet",
			facts{now: at(time.Hour), before: Before{LastUpdated: start, Eligible: true}},
			"started=true live=true eligible=true ready=true [IPv4 IPv6]",
		},
		{
			"the run before was well, and the Node is leaving now",
			facts{now: at(time.Hour), before: Before{LastUpdated: start, Eligible: true}, node: &cluster.Node{Leaving: true}},
			"started=true live=true eligible=false ready=false [IPv4 IPv6]",
		},
		{
			"the run before was well, and the first write is overdue",
			facts{now: at(time.Minute), listed: start, before: Before{LastUpdated: start, Eligible: true}, node: here},
			"started=true live=false eligible=true ready=false [IPv4 IPv6]",
		},
		{"nothing is known", facts{now: at(time.Hour)}, "started=false live=true eligible=false ready=false []"},
		{
			"lists arrive for an hour",
			facts{now: at(time.Hour), pending: start, node: here},
			"started=false live=true eligible=true ready=false []",
		},
		{
			"the first write has a minute",
			facts{now: at(59 * time.Second), listed: start, pending: at(-time.Hour), node: here},
			"started=false live=true eligible=true ready=false [IPv4 IPv6]",
		},
		{
			"and no more",
			facts{now: at(time.Minute), listed: start, node: here},
			"started=false live=false eligible=true ready=false [IPv4 IPv6]",
		},
		{
			"idle",
			facts{now: at(100 * time.Hour), listed: start, synced: start, node: here},
			"started=true live=true eligible=true ready=true [IPv4 IPv6]",
		},
		{
			"a change just not overdue",
			facts{now: at(time.Minute - 1), listed: start, synced: start, pending: start, node: here},
			"started=true live=true eligible=true ready=true [IPv4 IPv6]",
		},
		{
			"overdue to the nanosecond",
			facts{now: at(time.Minute), listed: start, synced: start, pending: start, node: here},
			"started=true live=false eligible=true ready=false [IPv4 IPv6]",
		},
		{
			"failing for longer than the change waits",
			facts{now: at(time.Minute), listed: start, synced: start, pending: at(time.Second), failing: start, node: here},
			"started=true live=false eligible=true ready=false [IPv4 IPv6]",
		},
		{
			"failing for not so long",
			facts{
				now: at(time.Minute), listed: start, synced: start, pending: at(time.Second), failing: at(time.Second), node: here,
			},
			"started=true live=true eligible=true ready=true [IPv4 IPv6]",
		},
		{
			"the node leaves",
			facts{now: start, listed: start, synced: start, node: &cluster.Node{Leaving: true}},
			"started=true live=true eligible=false ready=false [IPv4 IPv6]",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.facts.timeout = 2 * period
			if got := tt.facts.verdict(both()).text(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func change(s *cluster.Store, n int) {
	s.SetService(&cluster.Service{Name: cluster.Name{Namespace: "default", Name: fmt.Sprint(n)}})
}

// The verdicts from start to end, with a real store and simulated writes.
func TestTracker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := cluster.NewStore()
		done := store.Feed()
		tr := New(Options{Store: store, Families: both(), SyncPeriod: period})
		go func() { _ = tr.Run(t.Context()) }()
		wrote := func() {
			store.Take()
			store.MarkWritten()
			tr.Observe(proxy.Sync{})
		}
		fails := func() {
			store.Take()
			tr.Observe(proxy.Sync{Began: time.Now(), Err: errors.New("no")})
		}
		step := func(what string, do func(), want string) {
			t.Helper()
			do()
			synctest.Wait()
			if got := tr.Verdict().text(); got != want {
				t.Errorf("%s:\ngot  %s\nwant %s", what, got, want)
			}
		}
		sleep := func(d time.Duration) func() { return func() { time.Sleep(d) } }

		const (
			starting = "started=false live=true eligible=true ready=false []"
			listed   = "started=false live=true eligible=true ready=false [IPv4 IPv6]"
			well     = "started=true live=true eligible=true ready=true [IPv4 IPv6]"
			overdue  = "started=true live=false eligible=true ready=false [IPv4 IPv6]"
			leaving  = "started=true live=true eligible=false ready=false [IPv4 IPv6]"
		)
		step("the Node is not known yet", func() {}, "started=false live=true eligible=false ready=false []")
		step("it is", func() { store.SetNode(&cluster.Node{Name: "a"}) }, starting)
		step("S-254 the API server is slow", sleep(time.Hour), starting)
		step("all lists are complete", done, listed)
		step("the first write fails", fails, listed)
		step("the first write goes well", wrote, well)
		step("S-257 nothing changes for hours", sleep(100*time.Hour), well)
		step("a change waits", func() { change(store, 1); time.Sleep(2*period - 1) }, well)
		step("S-255 for too long", sleep(1), overdue)
		step("a later change does not help", func() { change(store, 2) }, overdue)
		step("nor does one that fails", fails, overdue)
		step("S-256 a write goes well", wrote, well)
		step("S-258 the autoscaler taints the node", func() { store.SetNode(&cluster.Node{Name: "a", Leaving: true}) },
			leaving)
		step("S-259 and lets it be", func() { store.SetNode(&cluster.Node{Name: "a"}) }, well)
		step("a repair fails, though nothing changed", func() { wrote(); fails(); time.Sleep(2 * period) }, overdue)
		step("S-260 the Node is being deleted", func() { wrote(); store.SetNode(&cluster.Node{Name: "a", Leaving: true}) },
			leaving)
		step("and gone", func() { store.SetNode(nil); wrote() }, leaving)
	})
}

// A change that arrives during a write waits from its arrival, not from the end of the write.
func TestChangeDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := cluster.NewStore()
		store.Feed()()
		tr := New(Options{Store: store, Families: both(), SyncPeriod: period})
		if err := tr.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		tr.Observe(proxy.Sync{})
		change(store, 1)
		store.Take()
		time.Sleep(period)
		change(store, 2)
		time.Sleep(period - time.Second)
		store.MarkWritten()
		tr.Observe(proxy.Sync{})
		if v := tr.Verdict(); !v.Live || !v.LastUpdated.Equal(v.Now) {
			t.Errorf("right after a write: %+v", v)
		}
		time.Sleep(period + time.Second)
		if tr.Serving() {
			t.Error("live, though the second change waits for a minute")
		}
	})
}

// A program that keeps changing the rules makes the proxy unhealthy. It stays live.
func TestAContestIsUnhealthy(t *testing.T) {
	store := cluster.NewStore()
	store.SetNode(&cluster.Node{Name: "a"})
	contest := proxy.Contest{Since: time.Now(), Repairs: 5}
	tr := New(Options{Store: store, SyncPeriod: period, Contest: func() proxy.Contest { return contest }})
	tr.Observe(proxy.Sync{Cause: proxy.Start, Began: time.Now(), Steps: 100})
	if v := tr.Verdict(); v.Programmed() || v.Serving() || !v.Live || v.Contest != contest {
		t.Errorf("during a contest: %+v", v)
	}
	contest = proxy.Contest{}
	if v := tr.Verdict(); !v.Programmed() || !v.Serving() {
		t.Errorf("after the contest: %+v", v)
	}
}
