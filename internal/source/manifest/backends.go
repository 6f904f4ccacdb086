package manifest

import (
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// backends finds the endpoints of Services that have no EndpointSlices of
// their own in the files: from Endpoints objects or, failing those, from the
// Pods they select.
type backends struct {
	services map[cluster.Name]*backing
	pods     map[label]map[cluster.Name]*convert.Pod
	selects  map[label]map[cluster.Name]struct{} // Services, each under one label of its selector
	stale    map[cluster.Name]struct{}
}

// label is one label of the Pods of a namespace.
type label struct{ namespace, key, value string }

// backing collects the sources of endpoints of one Service.
type backing struct {
	slices    int              // EndpointSlices of its own
	endpoints []*cluster.Slice // of an Endpoints object; nil: there is none
	selection *convert.Selection

	made []*cluster.Slice // put into the Store from these
}

func newBackends() backends {
	return backends{
		services: map[cluster.Name]*backing{},
		pods:     map[label]map[cluster.Name]*convert.Pod{},
		selects:  map[label]map[cluster.Name]struct{}{},
		stale:    map[cluster.Name]struct{}{},
	}
}

// note records a change. The Store stays as it is until flush.
func (b *backends) note(t change) {
	switch t.key.kind {
	case kindService:
		svc, _ := valueOf[service](t.new)
		b.reselect(t.key.name, svc.selection)
	case kindEndpointSlice:
		if sl, ok := valueOf[*cluster.Slice](t.old); ok {
			b.of(sl.Service).slices--
		}
		if sl, ok := valueOf[*cluster.Slice](t.new); ok {
			b.of(sl.Service).slices++
		}
	case kindEndpoints:
		b.of(t.key.name).endpoints, _ = valueOf[[]*cluster.Slice](t.new)
	case kindPod:
		b.repod(podOf(t.old), nil)
		b.repod(podOf(t.new), podOf(t.new))
	}
}

// of returns the backing of a Service and marks the Service as touched.
func (b *backends) of(name cluster.Name) *backing {
	b.stale[name] = struct{}{}
	s := b.services[name]
	if s == nil {
		s = &backing{}
		b.services[name] = s
	}
	return s
}

func (b *backends) reselect(name cluster.Name, selection *convert.Selection) {
	s := b.of(name)
	if s.selection != nil {
		drop(b.selects, anchor(s.selection), name)
	}
	s.selection = selection
	if selection != nil {
		put(b.selects, anchor(selection), name, struct{}{})
	}
}

// repod files a Pod under all its labels as now (nil: not any more), and marks
// the Services that select it.
func (b *backends) repod(pod, now *convert.Pod) {
	if pod == nil {
		return
	}
	for k, v := range pod.Labels {
		l := label{pod.Name.Namespace, k, v}
		if now != nil {
			put(b.pods, l, pod.Name, now)
		} else {
			drop(b.pods, l, pod.Name)
		}
		for name := range b.selects[l] {
			if b.services[name].selection.Matches(pod) {
				b.stale[name] = struct{}{}
			}
		}
	}
}

// anchor is the label under which a Service is indexed.
func anchor(s *convert.Selection) label {
	k := slices.Min(slices.Collect(maps.Keys(s.Labels)))
	return label{s.Service.Namespace, k, s.Labels[k]}
}

// flush updates the Store for all Services touched since the last flush.
func (b *backends) flush(store *cluster.Store) {
	for name := range b.stale {
		s := b.services[name]
		want := b.want(s)
		for _, sl := range want {
			store.SetSlice(sl)
		}
		for _, sl := range s.made {
			if !slices.ContainsFunc(want, func(w *cluster.Slice) bool { return w.Name == sl.Name }) {
				store.DeleteSlice(sl.Name)
			}
		}
		s.made = want
		if s.slices == 0 && s.endpoints == nil && s.selection == nil {
			delete(b.services, name)
		}
	}
	clear(b.stale)
}

// want returns the slices to make for a Service.
func (b *backends) want(s *backing) []*cluster.Slice {
	if s.slices > 0 {
		return nil
	}
	if s.endpoints != nil {
		return s.endpoints
	}
	if s.selection == nil {
		return nil
	}
	return s.selection.Slices(slices.Collect(maps.Values(b.pods[anchor(s.selection)])))
}

// put and drop change a map of maps without empty maps in it.
func put[A, B comparable, V any](m map[A]map[B]V, a A, b B, v V) {
	if m[a] == nil {
		m[a] = map[B]V{}
	}
	m[a][b] = v
}

func drop[A, B comparable, V any](m map[A]map[B]V, a A, b B) {
	delete(m[a], b)
	if len(m[a]) == 0 {
		delete(m, a)
	}
}
