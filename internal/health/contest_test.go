package health

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// fight simulates another program that edits rules, and repairs of each edit.
func fight(tr *Tracker, long, every time.Duration, steps int) {
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(every) {
		tr.Edited("table in ip sluice", "nft (thread 100)", time.Time{})
		tr.Edited("table in ip sluice", "nft (thread 812)", time.Time{})
		tr.Observe(proxy.Sync{Cause: proxy.ForeignEdit, Began: time.Now(), Steps: steps})
	}
}

func tracker(t *testing.T) *Tracker {
	t.Helper()
	store := cluster.NewStore()
	store.SetNode(&cluster.Node{Name: "a"})
	tr := New(Options{Store: store, SyncPeriod: period})
	tr.Observe(proxy.Sync{Cause: proxy.Start, Began: time.Now(), Steps: 100})
	return tr
}

// A program that keeps removing rules makes the proxy unhealthy, however soon
// they are repaired, until a minute after the last repair. It stays live.
func TestAContestIsUnhealthy(t *testing.T) {
	for _, every := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			tr := tracker(t)
			fight(tr, 40*time.Second, every, 3)
			v := tr.Verdict()
			if v.Programmed() || v.Serving() || !v.Live || v.Contest.By != "nft (thread 812)" || v.Contest.Program() != "nft" {
				t.Errorf("an edit every %v: %+v, want a contest with nft", every, v)
			}
			time.Sleep(contestCalm - every - time.Second)
			if v := tr.Verdict(); v.Programmed() {
				t.Errorf("an edit every %v: healthy %v after the last", every, contestCalm-time.Second)
			}
			time.Sleep(2 * time.Second)
			if v := tr.Verdict(); !v.Programmed() || v.Contest.Active() {
				t.Errorf("an edit every %v: not healthy when it is over: %+v", every, v)
			}
		})
	}
}

// Rules that are missing now count as well, before the repair that ends it.
func TestRulesThatAreMissingNowCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := tracker(t)
		time.Sleep(time.Minute)
		for range 2 {
			tr.Edited("chain KUBE-SERVICES", "", time.Now().Add(-500*time.Millisecond))
			tr.Observe(proxy.Sync{Cause: proxy.ForeignEdit, Began: time.Now(), Steps: 3})
			time.Sleep(time.Second)
		}
		tr.Edited("chain KUBE-SERVICES", "", time.Time{})
		if v := tr.Verdict(); v.Contest.Active() {
			t.Errorf("missing for 1 s of the last 5 s: %+v, want no contest", v)
		}
		time.Sleep(contestMissing)
		if v := tr.Verdict(); !v.Contest.Active() || v.Contest.Repairs != 2 {
			t.Errorf("missing for 2.5 s of the last 5 s: %+v, want a contest", v)
		}
	})
}

// A node whose rules are missing most of the time is unhealthy within seconds, also
// where repairs are so slow that there are few of them.
func TestSlowRepairsAreAContest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := tracker(t)
		begun := time.Now()
		for time.Since(begun) < 4*time.Second {
			tr.Edited("table in ip sluice", "nft (thread 100)", time.Time{})
			began := time.Now()
			time.Sleep(700 * time.Millisecond) // one repair
			tr.Observe(proxy.Sync{Cause: proxy.ForeignEdit, Began: began, Steps: 3})
			time.Sleep(100 * time.Millisecond)
		}
		if tr.Verdict().Programmed() {
			t.Error("healthy after 4 s, of which rules were missing for 3.5 s")
		}
	})
}

// A firewall that is reloaded, edits that change nothing of ours, and rare edits
// do not make a node unhealthy.
func TestNoContest(t *testing.T) {
	for name, play := range map[string]func(*Tracker){
		"a reload":     func(tr *Tracker) { fight(tr, 2*time.Second, 20*time.Millisecond, 3) },
		"rare edits":   func(tr *Tracker) { fight(tr, 5*time.Minute, 10*time.Second, 3) },
		"nothing ours": func(tr *Tracker) { fight(tr, 5*time.Minute, time.Second, 0) },
	} {
		synctest.Test(t, func(t *testing.T) {
			tr := tracker(t)
			play(tr)
			if v := tr.Verdict(); !v.Programmed() {
				t.Errorf("%s: %+v", name, v)
			}
		})
	}
}

// Rules that were removed and cannot be repaired make the proxy unhealthy. A minute after a
// successful comparison that began after the edit it is healthy again.
func TestRulesThatStayMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := tracker(t)
		began := time.Now()
		tr.Edited("table in ip sluice", "", time.Time{})
		tr.Observe(proxy.Sync{Cause: proxy.ForeignEdit, Began: began, Err: errors.New("no memory")})
		tr.Observe(proxy.Sync{Cause: proxy.Change, Began: time.Now()})
		time.Sleep(contestOverdue - time.Millisecond)
		if !tr.Verdict().Programmed() {
			t.Error("unhealthy before a repair is overdue")
		}
		time.Sleep(time.Millisecond)
		if v := tr.Verdict(); v.Programmed() || v.Contest.Repairs != 0 {
			t.Errorf("%+v, want a contest without a repair", v)
		}
		tr.Observe(proxy.Sync{Cause: proxy.Failure, Began: time.Now(), Steps: 3})
		if tr.Verdict().Programmed() {
			t.Error("healthy at once after rules were missing for long")
		}
		time.Sleep(contestCalm)
		if v := tr.Verdict(); !v.Programmed() {
			t.Errorf("not healthy when it is over: %+v", v)
		}
	})
}

// An edit during a repair is not repaired by it.
func TestEditDuringARepairStaysUnrepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := tracker(t)
		tr.Edited("table", "", time.Time{})
		began := time.Now()
		time.Sleep(time.Second)
		tr.Edited("table", "", time.Time{})
		tr.Observe(proxy.Sync{Cause: proxy.ForeignEdit, Began: began, Steps: 3})
		time.Sleep(contestOverdue)
		if tr.Verdict().Programmed() {
			t.Error("healthy though the second edit was never repaired")
		}
	})
}

func TestContestString(t *testing.T) {
	since := time.Now()
	for _, tt := range []struct {
		contest       Contest
		text, program string
	}{
		{
			Contest{since, 12, "table", "iptables (thread 7), nft (thread 812)"},
			"iptables (thread 7), nft (thread 812) repeatedly changed the rules of Sluice (last: table): rules were repaired 12 times", "nft",
		},
		{
			Contest{Since: since, What: "rule of KUBE-SERVICES in nat"},
			"another program (the kernel does not say which) repeatedly changed the rules of Sluice (last: rule of KUBE-SERVICES in nat): " +
				"rules are missing and not repaired yet", "",
		},
	} {
		if got := tt.contest.String(); got != tt.text {
			t.Errorf("got  %s\nwant %s", got, tt.text)
		}
		if got := tt.contest.Program(); got != tt.program {
			t.Errorf("program %q, want %q", got, tt.program)
		}
	}
}
