package files

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// merge joins the objects of sorted files. Of an object in two files the first counts; the second has a problem.
func merge(files []*file) (objects map[key]*object, duplicates map[*file][]route.Problem) {
	objects, duplicates = map[key]*object{}, map[*file][]route.Problem{}
	from := map[key]*file{}
	for _, f := range files {
		for _, o := range f.objects {
			first, twice := from[o.key]
			if !twice {
				from[o.key], objects[o.key] = f, o
				continue
			}
			duplicates[f] = append(duplicates[f], route.Problem{
				Object: f.path + ": " + o.key.String(), Reason: "also in " + first.path + ", which takes precedence",
			})
		}
	}
	return objects, duplicates
}

// state has the objects that the Store has, or is to have.
type state struct {
	services map[cluster.Name]*cluster.Service
	slices   map[cluster.Name]*cluster.Slice
	node     *cluster.Node
	cidrs    []netip.Prefix
}

// stateOf returns the state for the objects of files. A Service without EndpointSlices gets slices of its Endpoints
// or, if it has none, of the Pods that it selects.
func stateOf(objects map[key]*object) state {
	out := state{services: map[cluster.Name]*cluster.Service{}, slices: map[cluster.Name]*cluster.Slice{}}
	hasSlices := map[cluster.Name]bool{}
	pods := map[label][]*convert.Pod{}
	for k, o := range objects {
		switch v := o.value.(type) {
		case service:
			out.services[k.name] = v.Service
		case *cluster.Slice:
			out.slices[v.Name] = v
			hasSlices[v.Service] = true
		case *cluster.Node:
			out.node = v
		case []netip.Prefix:
			out.cidrs = append(out.cidrs, v...)
		case *convert.Pod:
			for name, value := range v.Labels {
				l := label{v.Name.Namespace, name, value}
				pods[l] = append(pods[l], v)
			}
		}
	}
	for k, o := range objects {
		var made []*cluster.Slice
		switch v := o.value.(type) {
		case []*cluster.Slice:
			made = v
		case service:
			if _, ok := valueOf[[]*cluster.Slice](objects[key{kindEndpoints, k.name}]); v.selection != nil && !ok {
				made = v.selection.Slices(pods[anchor(v.selection)])
			}
		}
		for _, sl := range made {
			if !hasSlices[k.name] {
				out.slices[sl.Name] = sl
			}
		}
	}
	slices.SortFunc(out.cidrs, netip.Prefix.Compare)
	return out
}

type label struct{ namespace, key, value string }

// anchor is a label that all Pods of a selection have.
func anchor(s *convert.Selection) label {
	k := slices.Min(slices.Collect(maps.Keys(s.Labels)))
	return label{s.Service.Namespace, k, s.Labels[k]}
}

// apply brings the Store to the next state, in an order in which no Service is ever without its endpoints.
func apply(store *cluster.Store, old, now state) {
	for name := range old.services {
		if now.services[name] == nil {
			store.DeleteService(name)
		}
	}
	for _, name := range changed(old.slices, now.slices) {
		store.SetSlice(now.slices[name])
	}
	for name := range old.slices {
		if now.slices[name] == nil {
			store.DeleteSlice(name)
		}
	}
	if !reflect.DeepEqual(old.node, now.node) {
		store.SetNode(now.node)
	}
	if !slices.Equal(old.cidrs, now.cidrs) {
		store.SetServiceCIDRs(now.cidrs)
	}
	for _, name := range changed(old.services, now.services) {
		store.SetService(now.services[name])
	}
}

// changed returns the names of values that are new or different.
func changed[V any](old, now map[cluster.Name]V) []cluster.Name {
	return slices.SortedFunc(func(yield func(cluster.Name) bool) {
		for name, v := range now {
			if before, ok := old[name]; (!ok || !reflect.DeepEqual(before, v)) && !yield(name) {
				return
			}
		}
	}, cluster.Name.Compare)
}

// valueOf returns the value of an object, if it has one of the type.
func valueOf[T any](o *object) (T, bool) {
	var none T
	if o == nil {
		return none, false
	}
	v, ok := o.value.(T)
	return v, ok
}
