package route

import (
	"iter"
	"runtime"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/cow"
)

// Snapshot is what a Compiler knows between two Compiles. It never changes, and
// any number of goroutines may read it.
type Snapshot struct {
	Host Host

	records cow.Set[*record]
	view    *view
}

// Snapshot returns what the Compiler knows now, in constant time. The next
// Compile costs the same as without it, except for some nodes of a tree that it
// copies.
func (c *Compiler) Snapshot() *Snapshot {
	return &Snapshot{Host: c.table.Host, records: c.records.Clone(), view: c.builder.view}
}

// Len returns the number of Services.
func (s *Snapshot) Len() int { return s.records.Len() }

// Service returns the Service of a name; nil if there is none.
func (s *Snapshot) Service(name cluster.Name) *Service {
	if r := s.records.Get(recordOf(name)); r != nil {
		return r.made
	}
	return nil
}

// yieldEvery is how many Services a walk through a Snapshot passes before it
// offers the processor to other goroutines, which the runtime alone would do
// every 10 ms. It bounds how long walks keep the proxy's loop from running where
// they occupy every processor, and is large enough to cost walks little.
const yieldEvery = 128

// Services returns all Services, sorted by name. The walk gives way to other
// goroutines.
func (s *Snapshot) Services() iter.Seq[*Service] {
	return Yielding(func(yield func(*Service) bool) {
		for r := range s.records.All() {
			if !yield(r.made) {
				return
			}
		}
	})
}

// Yielding returns the same values, but offers the processor to other goroutines
// every now and then.
func Yielding[T any](of iter.Seq[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		n := 0
		for v := range of {
			if !yield(v) {
				return
			}
			if n++; n%yieldEvery == 0 {
				runtime.Gosched()
			}
		}
	}
}

// Table returns a Table of the Services. Its cost follows their number.
func (s *Snapshot) Table() *Table {
	t := &Table{Host: s.Host, Services: make(map[cluster.Name]*Service, s.Len())}
	for svc := range s.Services() {
		t.Services[svc.Name] = svc
	}
	return t
}

// Problems returns what is wrong with a Service. Conflicts name the Service that
// has the claim when this is called.
func (s *Snapshot) Problems(name cluster.Name) []Problem {
	if r := s.records.Get(recordOf(name)); r != nil {
		return r.troubles.problems()
	}
	return nil
}

// Explain says of every endpoint in the slices of a Service whether it is in a
// pool of one of its Ports, and if not, why. It looks at the pool also if no
// front of the Port uses it. Endpoints are sorted by address.
func (s *Snapshot) Explain(name cluster.Name, port *Port, pool Pool) []Choice {
	r := s.records.Get(recordOf(name))
	if r == nil {
		return nil
	}
	list, n := gather(nil, r.slices, backendKey{port.Name, port.Protocol, port.Family})
	choose(list[:n], pool, s.view)
	slices.SortStableFunc(list, func(a, b Choice) int { return a.Backend.Compare(b.Backend) })
	return list
}
