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

// merge joins the values of objects in sorted files. Of an object in two files the first counts; the second has a
// problem.
func merge(files []*file) (objects map[key]any, duplicates map[*file][]route.Problem) {
	objects, duplicates = map[key]any{}, map[*file][]route.Problem{}
	from := map[key]*file{}
	for _, f := range files {
		for _, o := range f.objects {
			first, twice := from[o.key]
			if !twice {
				from[o.key], objects[o.key] = f, o.value
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
	peers    map[string]*cluster.Node // all Nodes, with the own one
	cidrs    []netip.Prefix
}

// stateOf returns the state for the objects of files. A Service without EndpointSlices gets slices of its Endpoints
// or, if it has none, of the Pods that it selects.
func stateOf(objects map[key]any, own string) state {
	out := state{
		services: map[cluster.Name]*cluster.Service{}, slices: map[cluster.Name]*cluster.Slice{},
		peers: map[string]*cluster.Node{},
	}
	hasSlices := map[cluster.Name]bool{}
	pods := map[label][]*convert.Pod{}
	for k, o := range objects {
		switch v := o.(type) {
		case service:
			out.services[k.name] = v.Service
		case *cluster.Slice:
			out.slices[v.Name] = v
			hasSlices[v.Service] = true
		case *cluster.Node:
			out.peers[v.Name] = v
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
		switch v := o.(type) {
		case []*cluster.Slice:
			made = v
		case service:
			if v.selection != nil && objects[key{kindEndpoints, k.name}] == nil {
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
	out.node = out.peers[own]
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
	setChanged(old.slices, now.slices, store.SetSlice)
	for name := range old.slices {
		if now.slices[name] == nil {
			store.DeleteSlice(name)
		}
	}
	for _, n := range now.peers {
		store.Peers().Set(n)
	}
	for name := range old.peers {
		if now.peers[name] == nil {
			store.Peers().Delete(name)
		}
	}
	if !reflect.DeepEqual(old.node, now.node) {
		store.SetNode(now.node)
	}
	if !slices.Equal(old.cidrs, now.cidrs) {
		store.SetServiceCIDRs(now.cidrs)
	}
	setChanged(old.services, now.services, store.SetService)
}

// setChanged calls set with each object that is new or different, sorted by name.
func setChanged[V any](old, now map[cluster.Name]*V, set func(*V)) {
	var names []cluster.Name
	for name, v := range now {
		if !reflect.DeepEqual(old[name], v) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, cluster.Name.Compare)
	for _, name := range names {
		set(now[name])
	}
}
