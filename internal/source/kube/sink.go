package kube

import (
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// sink puts the objects of a kind into the Store as they arrive. It keeps none. It implements cache.ReflectorStore.
type sink struct {
	put    func(object) []route.Problem // converts and stores an object; returns its problems
	drop   func(cluster.Name)
	names  func() []cluster.Name // of the objects put and not dropped, or more
	flush  func()                // after each change and each list; may be nil
	report func(cluster.Name, []route.Problem)
	absent []route.Problem // of a missing object
	done   func()          // after the first list

	arrived int                       // objects of the list that arrives
	missing map[cluster.Name]struct{} // objects that were there before this list, and are not in it so far

	listed  atomic.Bool               // once at least
	objects atomic.Int64              // how many there are
	last    atomic.Pointer[time.Time] // when the last list or change came
}

// begin is called before a list.
func (s *sink) begin() {
	s.arrived, s.missing = 0, map[cluster.Name]struct{}{}
	for _, name := range s.names() {
		s.missing[name] = struct{}{}
	}
}

// arrive puts an object of a list into the Store. It stays there even if the list fails later.
func (s *sink) arrive(obj object) error {
	s.arrived++
	s.take(obj)
	delete(s.missing, nameOf(obj))
	return nil
}

// Replace is called when a list is complete. Objects that are not in it were deleted between two watches.
func (s *sink) Replace([]any, string) error {
	for name := range s.missing {
		s.remove(name)
	}
	s.missing = nil
	s.objects.Store(int64(s.arrived))
	s.listed.Store(true)
	s.changed()
	s.done()
	return nil
}

func (s *sink) Add(obj any) error {
	s.objects.Add(1)
	return s.Update(obj)
}

func (s *sink) Update(obj any) error {
	s.take(obj.(object))
	s.changed()
	return nil
}

func (s *sink) Delete(obj any) error {
	s.objects.Add(-1)
	s.remove(nameOf(obj.(object)))
	s.changed()
	return nil
}

func (s *sink) Resync() error { return nil }

func (s *sink) take(obj object) { s.report(nameOf(obj), s.put(obj)) }

func (s *sink) remove(name cluster.Name) {
	s.report(name, s.absent)
	s.drop(name)
}

// changed is called after each change and each list.
func (s *sink) changed() {
	s.last.Store(new(time.Now()))
	if s.flush != nil {
		s.flush()
	}
}

func nameOf(obj object) cluster.Name {
	return cluster.Name{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}
