// Package eject decides which backends of a Service port get no new connections for a while, because connections to
// them failed. It is pure: the caller counts failures and passes the time.
package eject

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Phase is the phase of an ejection.
type Phase uint8

// The phases, in order. A backend without a State is In.
const (
	In      Phase = iota // the backend gets its whole share
	Ejected              // the backend gets no new connections
	Trial                // the backend gets a sixteenth of its share in short windows
	Rising               // the share grows in steps
)

const (
	firstPause = 5 * time.Second // until the first trial; it doubles with each ejection
	lastPause  = 20 * time.Second

	trialPart = 1 // of cluster.Whole

	// A trial consists of windows in which the backend gets trialPart. Each window is twice as long as the previous one.
	// After a window the backend gets nothing until it is known whether connections wait for an answer. If some wait,
	// their outcome decides; otherwise the next window begins.
	firstWindow = 100 * time.Millisecond
	lastWindow  = 14              // the step of the longest window, 12.8 s
	riseStep    = 4 * time.Second // duration of each step of Rising

	// resetAfter is how long a backend must be In before its next ejection counts as the first.
	resetAfter = time.Minute
)

// risingParts returns the share of a backend in each step of Rising.
func risingParts() []uint8 { return []uint8{cluster.Whole / 4, cluster.Whole / 2} }

// State is the state of a backend that was ejected. It does not depend on how failures are detected.
type State struct {
	Phase Phase     `json:"phase"`
	Step  int       `json:"step,omitempty"` // of Rising or Trial; steps of Trial: even in a window, odd after it
	Times int       `json:"times"`          // ejections in a row
	Since time.Time `json:"since"`          // of Phase and Step
	Next  time.Time `json:"next,omitzero"`  // when Phase or Step changes without evidence; zero: never

	Failures int `json:"failures"` // failed connections that caused the ejection
	Clients  int `json:"clients"`  // clients of these connections
}

// Share returns the share of new connections that the backend gets.
func (s State) Share() cluster.Share {
	share := cluster.Share{Part: cluster.Whole, Since: s.Since, Next: s.Next, Failures: s.Failures, Clients: s.Clients}
	switch s.Phase {
	case In:
	case Ejected:
		share.Part = 0
	case Trial:
		share.Part, share.Next = trialPart, time.Time{}
		if !s.Open() {
			share.Part = 0
		}
	case Rising:
		share.Part = risingParts()[s.Step]
	}
	return share
}

// Open reports whether the backend is in a window of its trial.
func (s State) Open() bool { return s.Phase == Trial && s.Step%2 == 0 }

// Out reports whether the backend is ejected or on trial, and counts towards MaxOut.
func (s State) Out() bool { return s.Phase == Ejected || s.Phase == Trial }

// Evidence is the outcome of connections to a backend.
type Evidence struct {
	// Since the last success: failed connections, the number of their clients, and the most failures of one client.
	Failures, Clients, Row int

	Succeeded bool // a connection succeeded since the last decision
	Observed  bool // Succeeded is reliable: a success would have been observed
	Idle      bool // no connection that began during the trial waits for an answer
}

// Reaches reports whether the failures are enough to eject the backend, provided that no connection succeeded.
func (e Evidence) Reaches(limits cluster.Ejection) bool {
	return limits.On() && (e.Clients >= int(limits.Clients) || e.Row >= int(limits.Row))
}

// Port is a port of a Service with its backends.
type Port struct {
	Limits   cluster.Ejection
	Backends []netip.AddrPort // usable backends, including ejected ones, sorted
	States   map[netip.AddrPort]State
}

// MaxOut returns how many of n backends may be out at a time: 30 %, but one of two or three, and never the last one.
func MaxOut(n int) int {
	if n < 2 {
		return 0
	}
	return max(1, n*3/10)
}

// Decide returns the new states. Backends that are In and were not ejected within resetAfter have none.
func (p Port) Decide(evidence map[netip.AddrPort]Evidence, now time.Time) map[netip.AddrPort]State {
	next := map[netip.AddrPort]State{}
	if !p.Limits.On() {
		return next
	}
	var suspects []netip.AddrPort
	out := 0
	for _, b := range p.Backends {
		s, had := p.States[b]
		e := evidence[b]
		if had {
			s, had = s.advance(e, now)
		}
		if had {
			next[b] = s
		}
		switch {
		case s.Out():
			out++
		case e.Observed && !e.Succeeded && e.Reaches(p.Limits):
			suspects = append(suspects, b)
		}
	}
	p.readmit(next, out-MaxOut(len(p.Backends)))
	slices.SortStableFunc(suspects, func(a, b netip.AddrPort) int {
		return cmp.Compare(evidence[b].Failures, evidence[a].Failures)
	})
	for _, b := range suspects[:min(len(suspects), max(0, MaxOut(len(p.Backends))-out))] {
		next[b] = eject(next[b].Times, evidence[b], now)
	}
	return next
}

// Full reports whether no further backend may be ejected.
func (p Port) Full() bool {
	out := 0
	for _, s := range p.States {
		if s.Out() {
			out++
		}
	}
	return out >= MaxOut(len(p.Backends))
}

// readmit lets excess backends in, those with the fewest ejections first. It is needed after other backends were
// deleted.
func (p Port) readmit(next map[netip.AddrPort]State, excess int) {
	if excess <= 0 {
		return
	}
	var list []netip.AddrPort
	for _, b := range p.Backends {
		if next[b].Out() {
			list = append(list, b)
		}
	}
	slices.SortStableFunc(list, func(a, b netip.AddrPort) int { return cmp.Compare(next[a].Times, next[b].Times) })
	for _, b := range list[:min(excess, len(list))] {
		delete(next, b)
	}
}

// advance returns the state after the evidence, or false if the state has expired. It does not eject backends that are
// In or Rising: Decide does.
func (s State) advance(e Evidence, now time.Time) (State, bool) {
	due := !s.Next.IsZero() && !now.Before(s.Next)
	idle := e.Idle && now.After(s.Since) // a poll at the end of a window does not see its last connections
	switch s.Phase {
	case In:
		return s, !due
	case Ejected:
		if due {
			return s.enter(Trial, 0, now), true
		}
	case Trial:
		switch {
		case e.Failures > 0:
			return eject(s.Times, e, now), true
		case e.Succeeded:
			return s.enter(Rising, 0, now), true
		case s.Step > lastWindow && idle:
			return s.enter(Trial, lastWindow, now), true
		case due, !s.Open() && idle:
			return s.enter(Trial, s.Step+1, now), true
		}
	case Rising:
		switch last := len(risingParts()) - 1; {
		case due && s.Step < last:
			return s.enter(Rising, s.Step+1, now), true
		case due:
			return s.enter(In, 0, now), true
		}
	}
	return s, true
}

// enter returns the state in another phase or step.
func (s State) enter(to Phase, step int, now time.Time) State {
	s.Phase, s.Step, s.Since = to, step, now
	switch {
	case to == In:
		s.Next = now.Add(resetAfter)
	case to == Rising:
		s.Next = now.Add(riseStep)
	case s.Open():
		s.Next = now.Add(firstWindow << (step / 2))
	default:
		s.Next = time.Time{}
	}
	return s
}

// eject returns the state of a backend that is ejected now, after a number of earlier ejections.
func eject(times int, e Evidence, now time.Time) State {
	return State{
		Phase: Ejected, Times: times + 1, Since: now, Next: now.Add(Pause(times + 1)),
		Failures: e.Failures, Clients: e.Clients,
	}
}

// Pause returns how long the nth ejection in a row lasts.
func Pause(n int) time.Duration {
	pause := firstPause
	for ; n > 1 && pause < lastPause; n-- {
		pause *= 2
	}
	return min(pause, lastPause)
}

// Valid reports whether a saved state is plausible at this time. The clock may have jumped since it was saved.
func (s State) Valid(now time.Time) bool {
	steps := len(risingParts())
	if s.Phase == Trial {
		steps = lastWindow + 2
	}
	return s.Phase <= Rising && s.Step >= 0 && s.Step < steps && s.Times >= 0 &&
		(s.Phase == Trial && !s.Open()) == s.Next.IsZero() && s.Next.Sub(now) <= resetAfter && now.Sub(s.Since) < 24*time.Hour
}
