package ebpf

import (
	"maps"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// serviceSets are sets of values, such as backends, by the Service that has them. Nil: no change was applied yet.
type serviceSets[T comparable] map[cluster.Name]map[T]bool

// apply updates the sets after a change, and reports whether it has changed any. of returns the set of a Service, which
// may be nil. The first change updates all, as Touched does not have the Services that the kernel has refused.
func (s *serviceSets[T]) apply(change route.Change, of func(*route.Service) map[T]bool) (changed bool) {
	if *s == nil {
		*s = serviceSets[T]{}
		for name, svc := range change.Table.Services {
			changed = s.set(name, of(svc)) || changed
		}
	}
	for _, t := range change.Touched {
		changed = s.set(t.Name, of(t.New)) || changed
	}
	return changed
}

func (s *serviceSets[T]) set(name cluster.Name, values map[T]bool) (changed bool) {
	changed = len(values) > 0 || len((*s)[name]) > 0
	if (*s)[name] = values; len(values) == 0 {
		delete(*s, name)
	}
	return changed
}

// all returns the union of the sets.
func (s *serviceSets[T]) all() map[T]bool {
	all := map[T]bool{}
	for _, values := range *s {
		maps.Copy(all, values)
	}
	return all
}
