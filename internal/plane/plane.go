// Package plane defines what a data plane is: code that writes a route.Table to one kernel mechanism.
package plane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plane writes routes to one kernel mechanism. Only one goroutine may use it at a time, except for Watch.
//
// Reading (Refresh), computing (Plan) and writing (Plan.Apply) are separate. After an error
// of Refresh or Apply the caller must call Refresh before the next Plan.
type Plane interface {
	// Refresh reads the kernel, and discards what the Plane knew about it. It writes nothing. It must be called before the
	// first Plan, and at start is called long before it. The Plan after a Refresh compares everything.
	Refresh(ctx context.Context) error

	// Plan computes what to write so that the kernel holds change.Table. It does no I/O and changes nothing that the Plane
	// knows; the Plane learns when Apply succeeds. Only what Refresh read is used up: after a Plan that compares
	// everything the caller must apply it or call Refresh.
	Plan(change route.Change) Plan

	// Watch calls report with each change that another program makes to objects of this plane, until the context ends;
	// then it returns nil. It calls subscribed once no later change can be missed. It may run beside all other methods.
	Watch(ctx context.Context, subscribed func(), report func(Edit)) error
}

// Above is the part of a Plane that concerns only the plane beneath it, on which it stands; nil: there is none.
type Above struct{ Beneath Plane }

// Watch implements Plane: edits of the plane beneath are all that can be detected.
func (a Above) Watch(ctx context.Context, subscribed func(), report func(Edit)) error {
	if a.Beneath == nil {
		subscribed()
		<-ctx.Done()
		return nil
	}
	return a.Beneath.Watch(ctx, subscribed, report)
}

// Plan is a change of the kernel. Steps and Kept may also be called after Apply, String only before. Apply may compute
// a part of the plan while it writes another one, so the change.Table of the plan must not change until it returns.
type Plan interface {
	Steps() int                      // 0: nothing to do
	Kept() int                       // entries found in the kernel that are right; 0 unless the Plan compares everything
	String() string                  // one step per line, in the language of the mechanism
	Apply(ctx context.Context) error // writes; the error may be a Refused
}

// Unread returns why a plan compares only a part of the kernel, as the rest could not be read; nil if it compares
// everything.
func Unread(p Plan) error {
	if partial, is := p.(interface{ Unread() error }); is {
		return partial.Unread()
	}
	return nil
}

// Edit is a change that another program made to objects of a plane.
type Edit struct {
	What string // the kinds of objects: "chain, rule"
	By   string // the program: "nft (thread 812)"; empty: unknown

	// Unclear means that the change may be one of objects of other programs. The caller compares everything, as after
	// any edit, and counts it as one if the comparison repairs something.
	Unclear bool
	// Possible means that no change was observed, but that one may have been missed. The
	// caller compares everything once that is cheap.
	Possible bool
}

// Refused is the error of an Apply that wrote everything except the rules of some Services,
// which the kernel rejects. It has the reason for each. The kernel holds these Services as
// before, or not at all. The Plane needs no Refresh for the others.
type Refused map[cluster.Name]error

// NoSocket is the error of a Service of which a listening socket could not be opened.
type NoSocket struct{ Err error }

// Error implements error.
func (n *NoSocket) Error() string { return n.Err.Error() }

// Unwrap returns the cause.
func (n *NoSocket) Unwrap() error { return n.Err }

// Problem says in general why a Service is refused, for a reason in Refused.
func Problem(reason error) string {
	if _, is := errors.AsType[*NoSocket](reason); is {
		return "a listening socket cannot be opened"
	}
	return "the kernel rejects its rules"
}

// Names returns the Services, sorted.
func (r Refused) Names() []cluster.Name {
	return slices.SortedFunc(maps.Keys(r), cluster.Name.Compare)
}

// Merge adds the Services that err refuses, and returns nil. It returns any other error. A Service that was refused
// before is refused for both reasons.
func (r Refused) Merge(err error) error {
	more, is := errors.AsType[Refused](err)
	if !is {
		return err
	}
	for name, err := range more {
		switch before := r[name]; {
		case before == nil:
			r[name] = err
		case !errors.Is(before, err): // plans of one comparison return what was refused before
			r[name] = fmt.Errorf("%w; %w", before, err)
		}
	}
	return nil
}

// Err returns the Refused as an error; nil if it has no Service.
func (r Refused) Err() error {
	if len(r) == 0 {
		return nil
	}
	return r
}

// Error returns each Service with its reason.
func (r Refused) Error() string {
	var lines []string
	for _, name := range r.Names() {
		lines = append(lines, fmt.Sprintf("Service %s: %s", name, r[name]))
	}
	return strings.Join(lines, "; ")
}
