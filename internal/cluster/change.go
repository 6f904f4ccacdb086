package cluster

import (
	"net/netip"
	"slices"
)

// Change holds the current state of everything that changed since the previous Take. Its cost is proportional to the
// number of changed Services, not to the number of all Services.
type Change struct {
	Services []State
	Facts    *Facts // nil: unchanged
}

// State is the current state of one Service. Service is nil if the Service does not exist, even if it has slices.
type State struct {
	Name    Name
	Service *Service
	Slices  []*Slice
}

// Facts apply to the whole node.
type Facts struct {
	Node         *Node          // nil: unknown
	ServiceCIDRs []netip.Prefix // sorted
	Local        []netip.Addr   // addresses on this host's interfaces, sorted
}

// Take returns the changes since the previous Take. After a change of the Node these are all Services.
func (s *Store) Take() Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c Change
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
		c.Services = append(c.Services, s.state(name))
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

func (s *Store) state(name Name) State {
	st := State{Name: name}
	if e := s.services[name]; e != nil {
		s.sweep(e)
		st.Service, st.Slices = e.service, e.slices
	}
	return st
}
