package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/proxy"
)

// A contest begins when contestRepairs of the seconds within contestWindow had a
// repair, so that the edits of one reload of a firewall are no contest, or when rules
// are missing for contestOverdue, or for half of missingWindow. It ends after
// contestCalm without a repair, so that a load balancer sees one change of health each
// way.
const (
	contestMissing = 2500 * time.Millisecond
	missingWindow  = 5 * time.Second

	contestRepairs = 5
	contestWindow  = 30 * time.Second
	contestCalm    = time.Minute
	contestOverdue = 10 * time.Second

	maxNames = 3 // of programs
)

// Contest means that another program keeps changing the rules, so that they are
// missing repeatedly, or cannot be repaired. The zero value is no contest.
type Contest struct {
	Since   time.Time `json:"since"`
	Repairs int       `json:"repairs"`      // since then
	What    string    `json:"what"`         // the latest edit: "rule of KUBE-SERVICES in nat"
	By      string    `json:"by,omitempty"` // the programs, as far as the kernel names them: "nft (thread 812)"
}

// Active reports whether there is one.
func (c Contest) Active() bool { return !c.Since.IsZero() }

// Program returns the name of the last program without its number, as a label
// that does not change with each run of it.
func (c Contest) Program() string {
	return programOf(strings.TrimSpace(c.By[strings.LastIndex(c.By, ", ")+1:]))
}

// programOf returns the name in "nft (thread 812)".
func programOf(by string) string {
	name, _, _ := strings.Cut(by, " (")
	return name
}

// String returns which program changes the rules and what Sluice did.
func (c Contest) String() string {
	by := "another program (" + unnamed + ")"
	if c.By != "" {
		by = c.By
	}
	repaired := fmt.Sprintf("rules were repaired %d times", c.Repairs)
	if c.Repairs == 0 {
		repaired = "rules are missing and not repaired yet"
	}
	return fmt.Sprintf("%s repeatedly changed the rules of Sluice (last: %s): %s", by, c.What, repaired)
}

// unnamed is why a program has no name.
const unnamed = "the kernel does not say which"

// contest collects the edits and repairs that a Contest follows from.
type contest struct {
	what      string
	by        []string    // the latest programs, each as it ran last
	repairs   []time.Time // within the window, at least a second apart
	count     int         // of repairs since the last calm
	since     time.Time
	last      time.Time // repair
	firstEdit time.Time // the first edit that no comparison has followed yet
	edit      time.Time // the latest
	missing   []span    // within missingWindow
	compared  time.Time // when the last comparison ended
}

// span is a time during which rules were missing, as far as known.
type span struct{ from, to time.Time }

// edited records an edit that was made between since and now.
func (c *contest) edited(what, by string, since, now time.Time) {
	c.what, c.edit = what, now
	if c.firstEdit.IsZero() {
		c.firstEdit = since
		if since.Before(c.compared) {
			c.firstEdit = c.compared
		}
	}
	if by == "" {
		return
	}
	c.by = slices.DeleteFunc(c.by, func(known string) bool { return programOf(known) == programOf(by) })
	c.by = append(c.by, by)
	c.by = c.by[max(0, len(c.by)-maxNames):]
}

// observe records a write.
func (c *contest) observe(s proxy.Sync, now time.Time) {
	if s.Err != nil || !s.Full() {
		return
	}
	if now.Sub(c.last) >= contestCalm {
		c.repairs, c.missing, c.count, c.since = nil, nil, 0, time.Time{}
	}
	if !c.firstEdit.IsZero() && !s.Began.Before(c.firstEdit) {
		missing := c.unrepaired(now)
		c.firstEdit = time.Time{}
		if s.Repair() {
			c.addMissing(missing)
		}
		if c.since.IsZero() && now.Sub(missing.from) >= contestOverdue {
			c.since, c.last = missing.from, now
		}
		if c.edit.After(s.Began) {
			c.firstEdit = c.edit
		}
	}
	c.compared = now
	if !s.Repair() {
		return
	}
	c.count++
	c.last = now
	c.repairs = slices.DeleteFunc(c.repairs, func(at time.Time) bool { return now.Sub(at) > contestWindow })
	if n := len(c.repairs); n == 0 || now.Sub(c.repairs[n-1]) >= time.Second {
		c.repairs = append(c.repairs, now)
	}
	if c.since.IsZero() && len(c.repairs) >= contestRepairs {
		c.since = c.repairs[0]
	}
}

// addMissing records that rules were missing.
func (c *contest) addMissing(s span) {
	c.missing = slices.DeleteFunc(c.missing, func(old span) bool { return old.to.Before(s.to.Add(-missingWindow)) })
	c.missing = append(c.missing, s)
	if c.since.IsZero() && len(c.missing) > 1 && c.missingFor(s.to) >= contestMissing {
		c.since, c.last = c.missing[0].from, s.to
	}
}

// missingFor returns for how long rules were missing within the window before now.
func (c *contest) missingFor(now time.Time) time.Duration {
	begin, total := now.Add(-missingWindow), time.Duration(0)
	for _, s := range append(slices.Clip(c.missing), c.unrepaired(now)) {
		if s.from.Before(begin) {
			s.from = begin
		}
		total += max(0, s.to.Sub(s.from))
	}
	return total
}

// unrepaired returns the time since the first edit that no comparison has followed yet.
func (c *contest) unrepaired(now time.Time) span {
	if c.firstEdit.IsZero() {
		return span{now, now}
	}
	return span{c.firstEdit, now}
}

// at returns the Contest at a time.
func (c *contest) at(now time.Time) Contest {
	out := Contest{What: cmp.Or(c.what, "rules"), By: strings.Join(c.by, ", ")}
	switch {
	case !c.since.IsZero() && now.Sub(c.last) < contestCalm:
		out.Since, out.Repairs = c.since, c.count
	case !c.firstEdit.IsZero() && now.Sub(c.firstEdit) >= contestOverdue:
		out.Since = c.firstEdit
	case !c.firstEdit.IsZero() && len(c.missing) > 0 && c.missingFor(now) >= contestMissing:
		out.Since, out.Repairs = c.missing[0].from, c.count
	default:
		return Contest{}
	}
	return out
}
