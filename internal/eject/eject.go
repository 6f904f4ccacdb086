// Package eject decides which backends of a Service port get no new connections for a while, as connections to them
// failed. It is pure: the caller counts failures and says what time it is.
package eject

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Phase is what happens to a backend.
type Phase uint8

// The phases, in order. A backend about which nothing is known is In.
const (
	In      Phase = iota // it has its whole share
	Ejected              // it gets no new connections
	Trial                // it gets a sixteenth of its share for a moment, and for longer ones until a connection tells
	Rising               // its share grows
)

const (
	firstPause = 5 * time.Second // until the first trial; it doubles with each ejection
	lastPause  = 20 * time.Second

	trialPart = 1 // of cluster.Whole

	// A trial has windows in which the backend gets its part, each twice as long as the one before. After each it gets
	// nothing until it is known whether connections wait for an answer: then these decide.
	firstWindow = 100 * time.Millisecond
	lastWindow  = 14              // as a step: 12.8 s
	riseStep    = 4 * time.Second // between two parts of risingParts

	// memory is how long a backend must be In so that its next ejection counts as the first.
	memory = time.Minute
)

// risingParts returns the parts of its share that a backend gets after a trial, one after the other.
func risingParts() []uint8 { return []uint8{cluster.Whole / 4, cluster.Whole / 2} }

// Standing is what is known of a backend that was ejected. It does not say anything of how it was measured.
type Standing struct {
	Phase Phase     `json:"phase"`
	Step  int       `json:"step,omitempty"` // of Rising; of Trial: in a window if it is even, and otherwise after it
	Times int       `json:"times"`          // ejections in a row
	Since time.Time `json:"since"`          // of Phase and Step
	Next  time.Time `json:"next,omitzero"`  // when Phase or Step changes without evidence; zero: never

	Failures int `json:"failures"` // that ejected it
	Clients  int `json:"clients"`  // that made them
}

// Share returns the part of its connections that the backend gets.
func (s Standing) Share() cluster.Share {
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
func (s Standing) Open() bool { return s.Phase == Trial && s.Step%2 == 0 }

// out reports whether the backend counts for the limit of backends that are ejected.
func (s Standing) out() bool { return s.Phase == Ejected || s.Phase == Trial }

// Evidence is what happened to connections to a backend.
type Evidence struct {
	Failures, Clients, Row int // since the last success: all, of how many clients, and the most of one client

	// Succeeded means that a connection succeeded since the last decision, and Known that one would have been noticed.
	Succeeded, Known bool

	Idle bool // no connection that began on trial waits for an answer
}

// Reaches reports whether the failures are enough to eject the backend if it is known that no connection succeeded.
func (e Evidence) Reaches(limits cluster.Ejection) bool {
	return limits.On() && (e.Clients >= int(limits.Clients) || e.Row >= int(limits.Row))
}

// Port is a port of a Service with its backends.
type Port struct {
	Limits    cluster.Ejection
	Backends  []netip.AddrPort // those that can be ejected: the usable ones, ejected ones included. Sorted.
	Standings map[netip.AddrPort]Standing
}

// Most returns how many of n backends may be out at a time: 30 %, but one of two or three, and never the last.
func Most(n int) int {
	if n < 2 {
		return 0
	}
	return max(1, n*3/10)
}

// Decide returns the standings at a time. It returns none for backends that are In and were not ejected lately.
func (p Port) Decide(evidence map[netip.AddrPort]Evidence, now time.Time) map[netip.AddrPort]Standing {
	next := map[netip.AddrPort]Standing{}
	if !p.Limits.On() {
		return next
	}
	var suspects []netip.AddrPort
	out := 0
	for _, b := range p.Backends {
		s, had := p.Standings[b]
		e := evidence[b]
		if had {
			s, had = s.proceed(e, now)
		}
		if had {
			next[b] = s
		}
		switch {
		case s.out():
			out++
		case e.Known && !e.Succeeded && e.Reaches(p.Limits):
			suspects = append(suspects, b)
		}
	}
	p.readmit(next, out-Most(len(p.Backends)))
	slices.SortStableFunc(suspects, func(a, b netip.AddrPort) int {
		return cmp.Compare(evidence[b].Failures, evidence[a].Failures)
	})
	for _, b := range suspects[:min(len(suspects), max(0, Most(len(p.Backends))-out))] {
		next[b] = eject(next[b].Times, evidence[b], now)
	}
	return next
}

// Full reports whether no more backends can be ejected.
func (p Port) Full() bool {
	out := 0
	for _, s := range p.Standings {
		if s.out() {
			out++
		}
	}
	return out >= Most(len(p.Backends))
}

// readmit lets backends in if there are more out than are allowed, as others left: those with the fewest ejections.
func (p Port) readmit(next map[netip.AddrPort]Standing, excess int) {
	if excess <= 0 {
		return
	}
	var list []netip.AddrPort
	for _, b := range p.Backends {
		if next[b].out() {
			list = append(list, b)
		}
	}
	slices.SortStableFunc(list, func(a, b netip.AddrPort) int { return cmp.Compare(next[a].Times, next[b].Times) })
	for _, b := range list[:min(excess, len(list))] {
		delete(next, b)
	}
}

// proceed returns the standing of a backend, except that it is ejected again while it is In or Rising. It returns
// false if nothing needs to be known of it any more.
func (s Standing) proceed(e Evidence, now time.Time) (Standing, bool) {
	due := !s.Next.IsZero() && !now.Before(s.Next)
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
		case s.Step > lastWindow && e.Idle:
			return s.enter(Trial, lastWindow, now), true
		case due, !s.Open() && e.Idle:
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

// enter returns the standing in another phase or step.
func (s Standing) enter(to Phase, step int, now time.Time) Standing {
	s.Phase, s.Step, s.Since = to, step, now
	switch {
	case to == In:
		s.Next = now.Add(memory)
	case to == Rising:
		s.Next = now.Add(riseStep)
	case s.Open():
		s.Next = now.Add(firstWindow << (step / 2))
	default:
		s.Next = time.Time{}
	}
	return s
}

// eject returns the standing of a backend that was ejected some times before.
func eject(times int, e Evidence, now time.Time) Standing {
	return Standing{
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

// Valid reports whether a standing that was saved can be one of this time. A clock may have jumped in between.
func (s Standing) Valid(now time.Time) bool {
	steps := len(risingParts())
	if s.Phase == Trial {
		steps = lastWindow + 2
	}
	return s.Phase <= Rising && s.Step >= 0 && s.Step < steps && s.Times >= 0 &&
		(s.Phase == Trial && !s.Open()) == s.Next.IsZero() && s.Next.Sub(now) <= memory && now.Sub(s.Since) < 24*time.Hour
}
