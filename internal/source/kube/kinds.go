package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kind says how objects of a list are decoded from protobuf.
type kind struct {
	name   string
	list   listType
	unread *unread // nil: all is read

	// objects returns a function for one list that returns an empty object for each of its
	// objects. It may use the memory of the last one again.
	objects func() func() protobufObject
}

type listType struct{ version, kind string }

// mustBe returns an error for a list of another type: without it an empty list of something
// else would delete everything.
func (l listType) mustBe(version, kind string) error {
	if l.version == version && l.kind == kind {
		return nil
	}
	return fmt.Errorf("the answer is a %s of %s, want a %s of %s", kind, version, l.kind, l.version)
}

type protobufObject interface {
	object
	Unmarshal([]byte) error
}

// serviceKind returns the kind of Services. All Services of a list share an object, whose lists and maps keep their
// memory: conversion copies the values that it keeps.
func serviceKind() kind {
	return kind{kindServices, listType{"v1", "ServiceList"}, unreadService(), func() func() protobufObject {
		var svc corev1.Service
		return func() protobufObject {
			spec := corev1.ServiceSpec{
				Ports: svc.Spec.Ports[:0], ClusterIPs: svc.Spec.ClusterIPs[:0], IPFamilies: svc.Spec.IPFamilies[:0],
			}
			svc = corev1.Service{ObjectMeta: emptied(&svc.ObjectMeta), Spec: spec}
			return &svc
		}
	}}
}

// sliceKind returns the kind of EndpointSlices, which share an object as Services do.
func sliceKind() kind {
	of := listType{"discovery.k8s.io/v1", "EndpointSliceList"}
	return kind{kindSlices, of, unreadSlice(), func() func() protobufObject {
		var es discoveryv1.EndpointSlice
		return func() protobufObject {
			es = discoveryv1.EndpointSlice{ObjectMeta: emptied(&es.ObjectMeta), Endpoints: es.Endpoints[:0], Ports: es.Ports[:0]}
			return &es
		}
	}}
}

// nodeKind and cidrKind return the kinds of Nodes and ServiceCIDRs. There are few of these objects.
func nodeKind() kind {
	return kind{kindNodes, listType{"v1", "NodeList"}, nil, func() func() protobufObject {
		return func() protobufObject { return &corev1.Node{} }
	}}
}

func cidrKind() kind {
	return kind{kindServiceCIDRs, listType{"networking.k8s.io/v1", "ServiceCIDRList"}, nil, func() func() protobufObject {
		return func() protobufObject { return &networkingv1.ServiceCIDR{} }
	}}
}

func emptied(m *metav1.ObjectMeta) metav1.ObjectMeta {
	clear(m.Labels)
	clear(m.Annotations)
	return metav1.ObjectMeta{Labels: m.Labels, Annotations: m.Annotations}
}
