package cluster

import (
	"net/netip"
	"slices"
	"time"
)

// Delta holds the current state of everything that changed since the previous Take. Its cost is proportional to the
// number of changed Services, not to the number of all Services.
type Delta struct {
	Services []State
	Facts    *Facts // nil: unchanged
}

// State is the current state of one Service. Service is nil if the Service does not exist, even if it has slices.
type State struct {
	Name    Name
	Service *Service
	Slices  []*Slice
	Shares  Shares
}

// Facts apply to the whole node.
type Facts struct {
	Node         *Node          // nil: unknown
	ServiceCIDRs []netip.Prefix // sorted
	Local        []netip.Addr   // addresses on this host's interfaces, sorted
}

// Take returns the changes since the previous Take. After a change of the Node these are all Services.
func (s *Store) Take() Delta {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c Delta
	if s.facts {
		c.Facts = &Facts{Node: s.ownNode(), ServiceCIDRs: s.cidrs, Local: s.local}
	}
	if s.all {
		for name := range s.services {
			s.dirty[name] = struct{}{}
		}
	}
	c.Services = make([]State, 0, len(s.dirty))
	for name := range s.dirty {
		st := State{Name: name, Shares: s.shares[name]}
		if e := s.services[name]; e != nil {
			s.sweep(e)
			st.Service, st.Slices = e.service, e.slices
		}
		c.Services = append(c.Services, st)
	}
	slices.SortFunc(c.Services, func(a, b State) int { return a.Name.Compare(b.Name) })
	s.facts, s.all = false, false
	s.taken, s.fresh = s.taken.and(s.fresh), Window{}
	if len(s.dirty) > 1024 {
		s.dirty = map[Name]struct{}{} // frees the memory that a burst took
	} else {
		clear(s.dirty)
	}
	return c
}

// Window describes the changes that arrived during some time.
type Window struct {
	Since    time.Time `json:"oldest,omitzero"` // of the first change; zero: there was none
	Last     time.Time `json:"-"`
	Services int       `json:"services"`       // changes of Services
	Slices   int       `json:"endpointSlices"` // changes of EndpointSlices

	// Triggers are the times of the changes to pods that led to the last thousand changes of slices, as far as the
	// annotation endpoints.kubernetes.io/last-change-trigger-time gives them. A Backlog has none.
	Triggers []Trigger `json:"-"`
}

// Trigger is the time of a change to pods from which endpoints of one family were computed.
type Trigger struct {
	At   time.Time
	IPv6 bool
}

// maxTriggers bounds the Triggers of a Window, which would otherwise grow for as long as the kernel refuses writes.
const maxTriggers = 1000

// Empty reports whether no change arrived.
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

// Totals counts the objects that a Store has received, including those without a difference.
type Totals struct{ Services, Slices uint64 }

// Totals returns the counts.
func (s *Store) Totals() Totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// Backlog returns the changes that are not in the kernel yet, without the Triggers.
func (s *Store) Backlog() Window {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken, fresh := s.taken, s.fresh
	taken.Triggers, fresh.Triggers = nil, nil
	return taken.and(fresh)
}

// MarkWritten records that the kernel has all changes taken, and returns them.
func (s *Store) MarkWritten() Window {
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

// triggers returns the Trigger of a slice; none if the previous version of the slice had the same.
func triggers(old, now *Slice) []Trigger {
	if now.Trigger.IsZero() || old != nil && old.Trigger.Equal(now.Trigger) {
		return nil
	}
	return []Trigger{{now.Trigger, now.ipv6() || old != nil && old.ipv6()}}
}

// ipv6 reports whether the endpoints of the slice have IPv6 addresses. Either all have, or none.
func (s *Slice) ipv6() bool { return len(s.Endpoints) > 0 && s.Endpoints[0].Addr.Is6() }
