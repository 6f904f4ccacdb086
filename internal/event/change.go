package event

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// The reasons of changes of Services. They stay on the node: an API server gets no Events about them.
const (
	reasonServiceAdded     = "ServiceAdded"
	reasonServiceChanged   = "ServiceChanged"
	reasonServiceDeleted   = "ServiceDeleted"
	reasonEndpointsChanged = "EndpointsChanged"
	reasonNotProgrammed    = "NotProgrammed"
	reasonFirstServices    = "ServicesInForce"
	reasonManyChanged      = "ServicesChanged"
)

// OfChange describes a change of a Service on this node that was written to the kernel.
func OfChange(t route.Touch) Event {
	e := Event{Object: Object{"Service", t.Name.Namespace, t.Name.Name}, Type: Normal, Action: actionProgram}
	before, now := describe(t.Old), describe(t.New)
	switch {
	case t.New == nil:
		e.Reason, e.Note = reasonServiceDeleted, "had "+text.Count(len(before.endpoints), "endpoint")
	case t.New.Ignored != "":
		e.Reason, e.Note = reasonNotProgrammed, t.New.Ignored
	case t.Old == nil || t.Old.Ignored != "":
		e.Reason, e.Note = reasonServiceAdded, "has "+text.Count(len(now.endpoints), "endpoint")
	default:
		endpoints := difference("endpoints", before.endpoints, now.endpoints, netip.AddrPort.Compare)
		frontends := difference("frontends", before.frontends, now.frontends, strings.Compare)
		switch {
		case frontends != "":
			e.Reason, e.Note = reasonServiceChanged, strings.TrimPrefix(endpoints+"; "+frontends, "; ")
		case endpoints != "":
			e.Reason, e.Note = reasonEndpointsChanged, endpoints
		default:
			e.Reason, e.Note = reasonServiceChanged, "a policy, affinity, weight or port name changed"
		}
	}
	return e
}

// FirstServices stands for the Services that the first write after a start contains.
func FirstServices(n int) Event {
	return ofMany(reasonFirstServices, services(n)+" programmed")
}

// ManyServices stands for changes of Services that are not described one by one.
func ManyServices(n int) Event { return ofMany(reasonManyChanged, services(n)+" changed") }

func ofMany(reason, note string) Event {
	return Event{Type: Normal, Reason: reason, Action: actionProgram, Note: note}
}

func services(n int) string { return text.Count(n, "Service") }

// description is what people see of a Service on this node. Both lists are sorted, without duplicates.
type description struct {
	endpoints []netip.AddrPort
	frontends []string
}

func describe(svc *route.Service) (d description) {
	if svc == nil {
		return d
	}
	for _, p := range svc.Ports {
		d.endpoints = append(append(d.endpoints, p.Cluster...), p.Local...)
		for _, f := range p.Frontends {
			d.frontends = append(d.frontends, frontend(p, f))
		}
	}
	slices.SortFunc(d.endpoints, netip.AddrPort.Compare)
	slices.Sort(d.frontends)
	d.endpoints, d.frontends = slices.Compact(d.endpoints), slices.Compact(d.frontends)
	return d
}

// frontend returns "10.96.0.80:80/tcp", or "nodePort 30080/tcp".
func frontend(p route.Port, f route.Frontend) string {
	if f.Kind == route.NodePort {
		return fmt.Sprintf("%s %d/%s", f.Kind, f.Port, p.Protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.Addr, f.Port), p.Protocol)
}

// difference returns "endpoints 3 to 4: added 10.244.1.5:8080", or "" if the sorted lists are equal.
func difference[T comparable](what string, before, now []T, compare func(a, b T) int) string {
	if slices.Equal(before, now) {
		return ""
	}
	var parts []string
	for _, part := range []struct {
		verb         string
		list, except []T
	}{{"added", now, before}, {"removed", before, now}} {
		if items := missing(part.list, part.except, compare); len(items) > 0 {
			parts = append(parts, part.verb+" "+few(items))
		}
	}
	return fmt.Sprintf("%s %d to %d: %s", what, len(before), len(now), strings.Join(parts, ", "))
}

// missing returns the items of a sorted list that another one does not have.
func missing[T any](list, except []T, compare func(a, b T) int) (items []T) {
	for _, item := range list {
		if _, found := slices.BinarySearchFunc(except, item, compare); !found {
			items = append(items, item)
		}
	}
	return items
}

// few names the first items of a list.
func few[T any](items []T) string {
	const most = 4
	list := fmt.Sprint(items[:min(most, len(items))])
	list = list[1 : len(list)-1] // without brackets
	if more := len(items) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}
