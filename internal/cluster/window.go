package cluster

import "time"

// Window is what came in over some time and made a difference.
type Window struct {
	Since, Last      time.Time // of the first and the last change; zero: there was none
	Services, Slices int       // changes of each kind

	// Triggers are when the changes to endpoints came about, as far as their
	// slices tell (annotation endpoints.kubernetes.io/last-change-trigger-time),
	// of the latest thousand. The Backlog has none.
	Triggers []Trigger
}

// Trigger is when a change to endpoints of one family came about.
type Trigger struct {
	At   time.Time
	IPv6 bool
}

// maxTriggers is how many are kept: a kernel that refuses for hours must not
// make them grow for as long.
const maxTriggers = 1000

// Empty reports whether nothing came in.
func (w Window) Empty() bool { return w.Since.IsZero() }

// and returns both windows as one; later is not before w.
func (w Window) and(later Window) Window {
	if w.Empty() {
		return later
	}
	if later.Empty() {
		return w
	}
	triggers := w.Triggers
	triggers = append(triggers, later.Triggers...)
	return Window{
		Since: w.Since, Last: later.Last,
		Services: w.Services + later.Services, Slices: w.Slices + later.Slices,
		Triggers: triggers[max(0, len(triggers)-maxTriggers):],
	}
}

// Totals count what a Store was told since it was made, whether or not it made
// a difference.
type Totals struct{ Services, Slices uint64 }

// Totals returns the counts.
func (s *Store) Totals() Totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// Backlog is what came in and has not been settled, but for the Triggers: many
// ask, and none for those.
func (s *Store) Backlog() Window {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken, fresh := s.taken, s.fresh
	taken.Triggers, fresh.Triggers = nil, nil
	return taken.and(fresh)
}

// Settle says that all that was taken is in force, and returns what that was.
func (s *Store) Settle() Window {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.taken
	s.taken = Window{}
	return done
}

// note adds a change that is made now.
func (s *Store) note(w Window) {
	w.Since = time.Now()
	w.Last = w.Since
	s.fresh = s.fresh.and(w)
}

// triggers returns when a slice changed, unless it said so before.
func triggers(old, now *Slice) []Trigger {
	if now.Trigger.IsZero() || old != nil && old.Trigger.Equal(now.Trigger) {
		return nil
	}
	return []Trigger{{now.Trigger, now.ipv6() || old != nil && old.ipv6()}}
}

// ipv6 reports whether the endpoints have IPv6 addresses: all have, or none.
func (s *Slice) ipv6() bool { return len(s.Endpoints) > 0 && s.Endpoints[0].Addr.Is6() }
