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
		sl := &cluster.Slice{
			Name:    derivedName(service, "endpoints", i),
			Service: service,
			Ports:   c.subsetPorts(subset.Ports, field+".ports", n),
		}
		for j, a := range subset.Addresses {
			sl.Endpoints = c.addSubsetAddr(sl.Endpoints, a, subsetAddr{field: at(field+".addresses", j), ready: true}, n)
		}
		for j, a := range subset.NotReadyAddresses {
			sl.Endpoints = c.addSubsetAddr(sl.Endpoints, a, subsetAddr{field: at(field+".notReadyAddresses", j)}, n)
		}
		out = append(out, sl)
	}
	return out, n.list()
}

// derivedName returns the name of a slice without an EndpointSlice object. It contains a
// slash, which names of objects cannot contain.
func derivedName(service cluster.Name, from string, i int) cluster.Name {
	return cluster.Name{Namespace: service.Namespace, Name: service.Name + "/" + from + "/" + strconv.Itoa(i)}
}

func (c Converter) subsetPorts(ports []corev1.EndpointPort, field string, n *notes) []cluster.SlicePort {
	out := make([]cluster.SlicePort, 0, len(ports))
	for i, p := range ports {
		port, ok := portNumber(p.Port)
		if !ok {
			n.add(at(field, i)+".port", number(p.Port), wantPort)
			continue
		}
		proto, ok := protocol(p.Protocol)
		if !ok {
			n.add(at(field, i)+".protocol", string(p.Protocol), wantProtocol)
			continue
		}
		out = append(out, cluster.SlicePort{Name: c.Strings.Of(p.Name), Protocol: proto, Port: port})
	}
	return out
}

// subsetAddr is the position of an address in an Endpoints object.
type subsetAddr struct {
	field string
	ready bool
}

func (c Converter) addSubsetAddr(
	list []cluster.Endpoint, in corev1.EndpointAddress, pos subsetAddr, n *notes,
) []cluster.Endpoint {
	a, reason := readAddr(in.IP, c.endpointFault)
	if reason != "" {
		n.add(pos.field+".ip", in.IP, reason)
		return list
	}
	return append(list, cluster.Endpoint{
		Addr:    a,
		Node:    c.Strings.Of(ptr.Deref(in.NodeName, "")),
		Ready:   pos.ready,
		Serving: pos.ready,
	})
}
