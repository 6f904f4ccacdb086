package proxy

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Cause is the reason for a comparison of everything with the kernel.
type Cause string

// The causes.
const (
	Change      Cause = ""             // no comparison: a change is written
	Start       Cause = "start"        // no write has succeeded yet
	Failure     Cause = "failure"      // a write failed, so that the kernel may hold anything
	ForeignEdit Cause = "foreign-edit" // another program changed rules of the plane
	Request     Cause = "request"      // a user requested it
	Period      Cause = "period"       // the periodic comparison
)

// String returns the cause, "change" for Change.
func (c Cause) String() string {
	if c == Change {
		return "change"
	}
	return string(c)
}

// Causes lists the causes of comparisons, all except Change.
func Causes() []Cause { return []Cause{Start, Failure, ForeignEdit, Request, Period} }

// Sync is the result of one attempt to write.
type Sync struct {
	Cause    Cause // Change: a change was written; otherwise everything was compared
	Services int   // touched
	Steps    int   // of a comparison: how much the kernel differed
	Adopted  int   // of a comparison: entries found in the kernel that are right
	Began    time.Time
	Compile  time.Duration
	Apply    time.Duration // reading and planning included; followers are notified afterwards
	Refused  int           // Services whose rules the kernel rejects
	Known    int           // all Services
	Vital    cluster.Name  // one of the refused Services without which a node does not work; zero: none of them is
	Err      error

	// In has the changes that are in the kernel since this write; empty after an error.
	In cluster.Window
}

// end records that the attempt to write has ended.
func (s *Sync) end() { s.Apply = time.Since(s.Began) - s.Compile }

// Took returns how long the attempt took.
func (s Sync) Took() time.Duration { return s.Compile + s.Apply }

// Full reports whether everything was compared with the kernel.
func (s Sync) Full() bool { return s.Cause != Change }

// Repair reports whether the write repaired rules that had been missing or wrong. What a
// start writes is no repair, nor is a further attempt to write refused Services.
func (s Sync) Repair() bool {
	return s.Err == nil && s.Refused == 0 && s.Steps > 0 && s.Cause.repairs()
}

// RepairCauses lists the causes of comparisons that can be repairs.
func RepairCauses() []Cause {
	return slices.DeleteFunc(Causes(), func(c Cause) bool { return !c.repairs() })
}

// audit reports whether no fault is known that the comparison would repair.
func (c Cause) audit() bool { return c == Request || c == Period }

func (c Cause) repairs() bool { return c != Change && c != Start }
