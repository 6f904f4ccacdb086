package proxy

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Cause says why everything is compared with the kernel.
type Cause string

// The causes.
const (
	Change      Cause = ""             // nothing is compared: one change is written
	Start       Cause = "start"        // nothing was written with success yet
	Failure     Cause = "failure"      // a write failed, so that the kernel may hold anything
	ForeignEdit Cause = "foreign-edit" // another program changed what is ours
	Request     Cause = "request"      // a person asked for it
	Period      Cause = "period"       // it is time again
)

// String returns the cause as people read it.
func (c Cause) String() string {
	if c == Change {
		return "change"
	}
	return string(c)
}

// Causes lists all that compare everything.
func Causes() []Cause { return []Cause{Start, Failure, ForeignEdit, Request, Period} }

// Sync is what one attempt to write came to.
type Sync struct {
	Cause    Cause // not Change: everything was compared with the kernel
	Services int   // touched
	Steps    int   // with Cause, how much the kernel differed
	Adopted  int   // with Cause, entries that were there and right
	Began    time.Time
	Compile  time.Duration
	Apply    time.Duration // planning included
	Refused  int           // Services that the kernel does not take, while it took all others
	Waiting  int           // large Services that a start left out in part, and that are still being written
	Err      error

	// In is what came in and is in force now; empty after an error.
	In cluster.Window
}

// Full reports whether everything was compared with the kernel.
func (s Sync) Full() bool { return s.Cause != Change }

// Repair reports whether the kernel was not as it had been left, and is again.
// What a start writes was not broken, and a Service that was refused once more was
// not repaired.
func (s Sync) Repair() bool {
	return s.Err == nil && s.Refused == 0 && s.Steps > 0 && s.Cause.mends()
}

// Mending lists the causes of comparisons that may come to a repair.
func Mending() []Cause { return slices.DeleteFunc(Causes(), func(c Cause) bool { return !c.mends() }) }

// patient reports whether a comparison looks for faults of which nothing is known.
func (c Cause) patient() bool { return c == Request || c == Period }

func (c Cause) mends() bool { return c != Change && c != Start }
