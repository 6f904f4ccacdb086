package convert

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Endpoints converts an Endpoints object to one slice for each subset, which may have
// addresses of both families. No EndpointSlice can have the name of such a slice.
func (c Converter) Endpoints(eps *corev1.Endpoints) ([]*cluster.Slice, []route.Problem) {
	if _, headless := eps.Labels[LabelHeadless]; headless {
		return nil, nil
	}
	service := cluster.Name{Namespace: c.Strings.Of(eps.Namespace), Name: eps.Name}
	n := &notes{object: Object("Endpoints", service)}
	out := make([]*cluster.Slice, 0, len(eps.Subsets))
	for i := range eps.Subsets {
		subset, field := &eps.Subsets[i], at("subsets", i)
		sl := &cluster.Slice{Name: derivedName(service, "endpoints", strconv.Itoa(i)), Service: service}
		for j, p := range subset.Ports {
			if port, ok := c.slicePort(p, at(field+".ports", j), n); ok {
				sl.Ports = append(sl.Ports, port)
			}
		}
		ready := c.subsetEndpoints(subset.Addresses, field+".addresses", n)
		for j := range ready {
			ready[j].Ready, ready[j].Serving = true, true
		}
		sl.Endpoints = append(ready, c.subsetEndpoints(subset.NotReadyAddresses, field+".notReadyAddresses", n)...)
		out = append(out, sl)
	}
	return out, n.list()
}

// derivedName returns the name of a slice without an EndpointSlice object. It contains a
// slash, which names of objects cannot contain.
func derivedName(service cluster.Name, from, part string) cluster.Name {
	return cluster.Name{Namespace: service.Namespace, Name: service.Name + "/" + from + "/" + part}
}

// subsetEndpoints converts addresses to endpoints that are not ready.
func (c Converter) subsetEndpoints(addrs []corev1.EndpointAddress, field string, n *notes) []cluster.Endpoint {
	var list []cluster.Endpoint
	for i, in := range addrs {
		a, reason := readAddr(in.IP, c.endpointFault)
		if reason != "" {
			n.add(at(field, i)+".ip", in.IP, reason)
			continue
		}
		list = append(list, cluster.Endpoint{Addr: a, Node: c.Strings.Of(ptr.Deref(in.NodeName, ""))})
	}
	return list
}
