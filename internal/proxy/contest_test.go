package proxy

import (
	"errors"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
)

// contested is a clock with edits and repairs.
type contested struct {
	*edits
	now time.Time
}

func newContested() *contested {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &contested{newEdits(now), now}
}

func (c *contested) wait(d time.Duration) { c.now = c.now.Add(d) }

func (c *contested) edit(by string) { c.add(plane.Edit{What: "table in ip sluice", By: by}, c.now) }

// repair makes a comparison, which takes some time.
func (c *contested) repair(takes time.Duration, steps int) {
	c.begin()
	c.wait(takes)
	c.end(Sync{Cause: ForeignEdit, Steps: steps}, 0, c.now)
}

// fight lets another program edit rules, and repairs each edit.
func (c *contested) fight(long, every time.Duration, steps int) {
	for end := c.now.Add(long); c.now.Before(end); c.wait(every) {
		c.edit("nft (thread 100)")
		c.edit("nft (thread 812)")
		c.repair(0, steps)
	}
}

func (c *contested) want(t *testing.T, what string, active bool, repairs int) {
	t.Helper()
	if got := c.contest(c.now); got.Active() != active || active && got.Repairs != repairs {
		t.Errorf("%s: %+v, want a contest: %v, with %d repairs", what, got, active, repairs)
	}
}

// A program that keeps removing rules contests them, however soon they are repaired, until a minute
// after the last repair.
func TestAContest(t *testing.T) {
	for _, every := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second} {
		c := newContested()
		c.fight(40*time.Second, every, 3)
		repairs := int(40 * time.Second / every)
		if got := c.contest(c.now); got.By != "nft (thread 812)" || got.Program() != "nft" {
			t.Errorf("an edit every %v: %+v, want a contest with nft", every, got)
		}
		c.wait(contestCalm - every - time.Second)
		c.want(t, "almost a minute after the last edit", true, repairs)
		c.wait(time.Second)
		c.want(t, "a minute after the last edit", false, 0)
	}
}

// A firewall that is reloaded, edits that change nothing of ours, and rare edits are no contest.
func TestNoContest(t *testing.T) {
	for name, play := range map[string]func(*contested){
		"a reload":     func(c *contested) { c.fight(2*time.Second, 20*time.Millisecond, 3) },
		"rare edits":   func(c *contested) { c.fight(5*time.Minute, 10*time.Second, 3) },
		"nothing ours": func(c *contested) { c.fight(5*time.Minute, time.Second, 0) },
		"a repair that takes long": func(c *contested) {
			c.edit("")
			c.repair(contestLasting-1, 3)
		},
		"unclear": func(c *contested) {
			c.add(plane.Edit{What: "rules in nat", Unclear: true}, c.now)
			c.wait(time.Minute)
		},
	} {
		c := newContested()
		play(c)
		c.want(t, name, false, 0)
	}
}

// Rules that were removed and cannot be repaired are contested, until a minute after a successful
// comparison that began after the edit.
func TestRulesThatStayMissing(t *testing.T) {
	c := newContested()
	c.edit("")
	c.begin()
	c.end(Sync{Cause: ForeignEdit, Err: errors.New("no memory")}, 0, c.now)
	c.wait(contestLasting - 1)
	c.want(t, "missing for less than 10 s", false, 0)
	c.wait(1)
	c.want(t, "missing for 10 s", true, 0)
	c.begin()
	c.end(Sync{Cause: Failure, Steps: 3}, 0, c.now)
	c.want(t, "repaired", true, 1)
	c.wait(contestCalm)
	c.want(t, "repaired a minute ago", false, 0)
}

// An edit during a repair is not repaired by it.
func TestAnEditDuringARepairStaysUnrepaired(t *testing.T) {
	c := newContested()
	c.edit("")
	c.begin()
	c.wait(time.Second)
	c.edit("")
	c.end(Sync{Cause: ForeignEdit, Steps: 3}, 0, c.now)
	c.wait(contestLasting - 1)
	c.want(t, "missing for less than 10 s", false, 0)
	c.wait(1)
	c.want(t, "missing for 10 s", true, 1)
}

func TestContestString(t *testing.T) {
	since := time.Now()
	for _, tt := range []struct {
		contest       Contest
		text, program string
	}{
		{
			Contest{since, 12, "table", "nft (thread 812)"},
			"nft (thread 812) repeatedly changed the rules of Sluice (last: table): rules were repaired 12 times", "nft",
		},
		{
			Contest{Since: since, What: "rule of KUBE-SERVICES in nat"},
			"another program (the kernel does not say which) repeatedly changed the rules of Sluice " +
				"(last: rule of KUBE-SERVICES in nat): " +
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
