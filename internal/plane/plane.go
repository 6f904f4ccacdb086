// Package plane says what a data plane is: something that makes one kernel
// mechanism do what a route.Table says.
package plane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plane makes one kernel mechanism do what a table says. One goroutine uses it,
// but for Watch.
//
// It reads, thinks and writes in three separate steps. After an error of
// Refresh or Apply its belief is void: Refresh comes next.
type Plane interface {
	// Refresh looks at the kernel and forgets what was believed. It comes
	// before the first Plan. The Plan after a Refresh compares everything.
	Refresh(ctx context.Context) error

	// Plan works out what to write so that the kernel does what change.Table
	// says. It does no I/O. At most one plan is pending: it is applied, or the
	// Plane refreshed, before the next is made.
	Plan(change route.Change) Plan

	// Watch tells of what other programs change in what is this plane's, until
	// the context ends; it returns nil then. Subscribed is called when it would
	// hear of everything from then on. It runs beside the goroutine that uses the
	// rest.
	Watch(ctx context.Context, subscribed func(), tell func(Edit)) error

	// Remove takes everything of this plane out of the kernel, also what an
	// earlier run left, and says in a few words each what that was. It needs no
	// Refresh.
	Remove(ctx context.Context) (removed []string, err error)
}

// Plan is a change to the kernel, worked out but not made.
type Plan interface {
	Steps() int                      // 0: nothing to do
	Kept() int                       // entries found in the kernel that are right; only after a Refresh
	String() string                  // one step per line, in the mechanism's own language
	Apply(ctx context.Context) error // writes; on success the belief is what was wanted. It may be Refused
}

// Edit is a change that another program made to what is a plane's.
type Edit struct {
	What string // in a few words: "chain, rule"
	By   string // the program, as far as it is known: "nft (thread 812)"

	// Possible means that no change was observed, but that one may have gone
	// unnoticed: everything is to be compared as soon as that is cheap.
	Possible bool

	// Since is when the edit was made at the earliest, where that is not known to be
	// now; zero: it was made now.
	Since time.Time
}

// Refused is the error of an Apply after which everything is in the kernel but
// some Services, whose rules it does not take, and why. They are as they were
// before, or not there. What the plane believes of the others holds.
type Refused map[cluster.Name]error

// Names returns the Services in order.
func (r Refused) Names() []cluster.Name {
	return slices.SortedFunc(maps.Keys(r), cluster.Name.Compare)
}

// Error names each Service and says why.
func (r Refused) Error() string {
	var lines []string
	for _, name := range r.Names() {
		lines = append(lines, fmt.Sprintf("Service %s: %s", name, r[name]))
	}
	return strings.Join(lines, "; ")
}
