package convert

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Slice converts an EndpointSlice. It returns nil if the slice is not for a proxy, or not usable.
func (c Converter) Slice(es *discoveryv1.EndpointSlice) (*cluster.Slice, []route.Problem) {
	name := cluster.Name{Namespace: c.Strings.Of(es.Namespace), Name: es.Name}
	n := &notes{object: Object("EndpointSlice", name)}
	if _, headless := es.Labels[LabelHeadless]; headless || es.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, nil
	}
	service := es.Labels[discoveryv1.LabelServiceName]
	if strings.HasPrefix(es.Name, service) {
		service = es.Name[:len(service)] // shares the memory of the name, which usually begins with the Service
	}
	if service == "" {
		n.add("metadata.labels", "", "no label "+discoveryv1.LabelServiceName+": the slice belongs to no Service")
		return nil, n.list()
	}
	if es.AddressType != discoveryv1.AddressTypeIPv4 && es.AddressType != discoveryv1.AddressTypeIPv6 {
		n.add("addressType", string(es.AddressType), "unknown address type: expected IPv4, IPv6 or FQDN")
		return nil, n.list()
	}
	// The time of the change to pods that led to this version; zero if that is not known.
	trigger, _ := time.Parse(time.RFC3339Nano, es.Annotations[corev1.EndpointsLastChangeTriggerTime])
	out := &cluster.Slice{
		Name:    name,
		Service: cluster.Name{Namespace: name.Namespace, Name: service},
		Ports:   c.slicePorts(es, n),
		Trigger: trigger,
		Weight:  sliceWeight(es, n),
	}
	c.addEndpoints(out, es, n)
	return out, n.list()
}

func (c Converter) slicePorts(es *discoveryv1.EndpointSlice, n *notes) []cluster.SlicePort {
	out := make([]cluster.SlicePort, 0, len(es.Ports))
	for i, p := range es.Ports {
		if p.Name == nil {
			n.add(at("ports", i)+".name", "", "a port without a name belongs to no port of the Service; \"\" is a name")
			continue
		}
		if p.Port == nil || *p.Port == 0 {
			n.add(at("ports", i)+".port", "", "a port without a number (\"all ports\") cannot be balanced")
			continue
		}
		in := corev1.EndpointPort{Name: *p.Name, Port: *p.Port, Protocol: ptr.Deref(p.Protocol, "")}
		if port, ok := c.slicePort(in, at("ports", i), n); ok {
			out = append(out, port)
		}
	}
	return out
}

func (c Converter) slicePort(p corev1.EndpointPort, field string, n *notes) (cluster.SlicePort, bool) {
	port, ok := portNumber(p.Port)
	if !ok {
		n.add(field+".port", number(p.Port), wantPort)
		return cluster.SlicePort{}, false
	}
	proto, ok := protocol(p.Protocol)
	if !ok {
		n.add(field+".protocol", string(p.Protocol), wantProtocol)
	}
	return cluster.SlicePort{Name: c.Strings.Of(p.Name), Protocol: proto, Port: port}, ok
}

func (c Converter) addEndpoints(out *cluster.Slice, es *discoveryv1.EndpointSlice, n *notes) {
	fault := func(a netip.Addr) string {
		reason := c.endpointFault(a)
		if reason == "" && route.FamilyOf(a).String() != string(es.AddressType) {
			reason = "expected " + string(es.AddressType) + ", the addressType of the slice"
		}
		return reason
	}
	out.Endpoints = make([]cluster.Endpoint, 0, len(es.Endpoints))
	for i := range es.Endpoints {
		ep := &es.Endpoints[i]
		if len(ep.Addresses) == 0 {
			continue
		}
		a, reason := readAddr(ep.Addresses[0], fault)
		if reason != "" {
			n.add(at("endpoints", i)+".addresses[0]", ep.Addresses[0], reason)
			continue
		}
		node := ptr.Deref(ep.NodeName, "")
		if ref := ep.TargetRef; ref != nil && ref.Kind == "Pod" && (c.PodsOf == "" || c.PodsOf == node) {
			out.Pods = append(out.Pods, cluster.Pod{Name: ref.Name, Addr: a})
		}
		out.Endpoints = append(out.Endpoints, cluster.Endpoint{
			Addr:        a,
			Node:        c.Strings.Of(node),
			Ready:       ptr.Deref(ep.Conditions.Ready, true),
			Serving:     ptr.Deref(ep.Conditions.Serving, true),
			Terminating: ptr.Deref(ep.Conditions.Terminating, false),
			Hints:       c.Strings.Hints(ep.Hints),
		})
	}
}

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

// derivedName names a slice without an EndpointSlice object. Names of objects cannot contain its slash.
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
