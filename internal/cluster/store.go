package cluster

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// Store collects the objects that the sources deliver. It is safe for concurrent
// use. Setting an object to the value that it has is no change, and wakes no reader.
type Store struct {
	mu       sync.Mutex
	services map[Name]*entry
	slices   map[Name]*Slice // by the slice's own name
	node     *Node
	standIn  *Node // used while node is nil
	cidrs    []netip.Prefix
	local    []netip.Addr
	shares   map[Name]Shares // by Service, which need not exist

	dirty map[Name]struct{}
	all   bool // the next Take returns every Service
	facts bool // node, cidrs or local changed

	fresh Window // changes since the last Take
	taken Window // changes taken that the kernel may not have yet
	total Totals

	peers *Peers

	feeds   int
	ready   chan struct{}
	changed chan struct{}
}

// entry is a Service and its slices. The list of slices is only appended to or replaced, as a Change may share its
// beginning. Replaced and deleted slices stay in the list until it is taken, or until they are half of it, so that many
// slices of one Service can come and go at a small cost each.
type entry struct {
	service *Service
	slices  []*Slice
	gone    int // how many of slices were replaced or deleted
}

// NewStore returns an empty Store.
func NewStore() *Store {
	return &Store{
		services: map[Name]*entry{},
		shares:   map[Name]Shares{},
		slices:   map[Name]*Slice{},
		dirty:    map[Name]struct{}{},
		peers:    newPeers(),
		ready:    make(chan struct{}),
		changed:  make(chan struct{}, 1),
	}
}

// Feed registers a feed that has not delivered everything once yet. The caller calls done when it has; further calls of
// done have no effect. All feeds must be registered before the first is done.
func (s *Store) Feed() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feeds++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.feeds--; s.feeds == 0 {
			close(s.ready)
		}
	})
}

// Ready is closed when every feed is done.
func (s *Store) Ready() <-chan struct{} { return s.ready }

// Changed receives a value when there are changes to Take. Several changes may send only one value.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// SetService adds or replaces a Service.
func (s *Store) SetService(svc *Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.Services++
	e := s.entry(svc.Name)
	if e.service != nil && e.service.equal(svc) {
		return
	}
	e.service = svc
	s.note(Window{Services: 1})
	s.touch(svc.Name)
}

// DeleteService removes a Service, if it exists.
func (s *Store) DeleteService(name Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.Services++
	e := s.services[name]
	if e == nil || e.service == nil {
		return
	}
	e.service = nil
	s.note(Window{Services: 1})
	s.forget(name, e)
	s.touch(name)
}

// SetSlice adds or replaces an EndpointSlice. If its Service has changed, it is removed from the previous one.
func (s *Store) SetSlice(sl *Slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.Slices++
	old := s.slices[sl.Name]
	if old != nil && old.equal(sl) {
		return
	}
	if e := s.services[sl.Service]; e != nil && e.gone > 0 {
		own := *sl // a copy, as the list may still hold sl itself as a deleted slice
		sl = &own
	}
	s.slices[sl.Name] = sl
	if old != nil {
		s.detach(old)
	}
	e := s.entry(sl.Service)
	e.slices = append(e.slices, sl)
	s.note(Window{Slices: 1, Triggers: triggers(old, sl)})
	s.touch(sl.Service)
}

// DeleteSlice removes an EndpointSlice, if it exists.
func (s *Store) DeleteSlice(name Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.Slices++
	if old := s.slices[name]; old != nil {
		delete(s.slices, name)
		s.note(Window{Slices: 1})
		s.detach(old)
	}
}

// SetShares sets the shares of the backends of a Service, which need not exist yet; nil: all have the whole one.
func (s *Store) SetShares(name Name, shares Shares) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(s.shares[name], shares) {
		return
	}
	if delete(s.shares, name); len(shares) > 0 {
		s.shares[name] = shares
	}
	s.note(Window{})
	s.touch(name)
}

// SetNode sets the own Node; nil if it does not exist (yet).
func (s *Store) SetNode(n *Node) { s.setNode(&s.node, n) }

// SetStandIn sets the Node to use while the cluster has delivered none; it is made from properties of the host.
func (s *Store) SetStandIn(n *Node) { s.setNode(&s.standIn, n) }

func (s *Store) setNode(which **Node, n *Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.ownNode()
	*which = n
	if s.ownNode().equal(before) {
		return
	}
	s.all, s.facts = true, true
	s.note(Window{})
	s.wake()
}

// Peers returns the Nodes of the cluster.
func (s *Store) Peers() *Peers { return s.peers }

// Node returns the own Node, or its stand-in; nil if both are unknown.
func (s *Store) Node() *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ownNode()
}

func (s *Store) ownNode() *Node {
	if s.node != nil {
		return s.node
	}
	return s.standIn
}

// SetServiceCIDRs sets the union of all ServiceCIDR objects, in any order.
func (s *Store) SetServiceCIDRs(cidrs []netip.Prefix) {
	setFact(s, &s.cidrs, slices.SortedFunc(slices.Values(cidrs), netip.Prefix.Compare))
}

// SetLocalAddresses sets the addresses on this host's interfaces, in any order.
func (s *Store) SetLocalAddresses(addrs []netip.Addr) {
	setFact(s, &s.local, slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare))
}

// setFact replaces a list by a sorted one.
func setFact[T comparable](s *Store, fact *[]T, sorted []T) {
	sorted = slices.Compact(sorted)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(sorted, *fact) {
		return
	}
	*fact, s.facts = sorted, true
	s.note(Window{})
	s.wake()
}

// ServiceNames returns the names of all Services.
func (s *Store) ServiceNames() []Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]Name, 0, len(s.services))
	for n, e := range s.services {
		if e.service != nil {
			names = append(names, n)
		}
	}
	return names
}

// Labels returns the labels of a Service, as Service.Labels.
func (s *Store) Labels(name Name) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.services[name]; e != nil && e.service != nil {
		return e.service.Labels
	}
	return ""
}

// SliceNames returns the names of all EndpointSlices.
func (s *Store) SliceNames() []Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.slices))
}

// entry returns the entry of name, and creates it if it does not exist.
func (s *Store) entry(name Name) *entry {
	e := s.services[name]
	if e == nil {
		e = &entry{}
		s.services[name] = e
	}
	return e
}

// detach removes a slice from its Service. It must not be in s.slices any more.
func (s *Store) detach(sl *Slice) {
	e := s.services[sl.Service]
	e.gone++
	if 2*e.gone >= len(e.slices) {
		s.sweep(e)
	}
	s.forget(sl.Service, e)
	s.touch(sl.Service)
}

// sweep replaces the list of an entry by one without replaced and deleted slices.
func (s *Store) sweep(e *entry) {
	if e.gone == 0 {
		return
	}
	kept := make([]*Slice, 0, len(e.slices)-e.gone)
	for _, sl := range e.slices {
		if s.slices[sl.Name] == sl {
			kept = append(kept, sl)
		}
	}
	e.slices, e.gone = kept, 0
}

// forget deletes an entry without a Service and without slices.
func (s *Store) forget(name Name, e *entry) {
	if e.service == nil && len(e.slices) == e.gone {
		delete(s.services, name)
	}
}

func (s *Store) touch(name Name) {
	s.dirty[name] = struct{}{}
	s.wake()
}

// Wake makes Changed deliver a value, for a reader that received one but did not call Take.
func (s *Store) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake()
}

func (s *Store) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}
