package cluster

import (
	"net/netip"
	"slices"
)

// Change holds the present state of all that changed since the Take before. Its
// cost follows the number of touched services, not the number of services.
type Change struct {
	Services []State
	Facts    *Facts // nil: as before
}

// State is one service as it is now. Service is nil if there is none, whatever
// slices there are.
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

// Take returns what changed since the last Take; after a change of the Node
// that is every service.
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
		s.dirty = map[Name]struct{}{} // frees the memory of a burst
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
