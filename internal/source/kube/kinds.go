package kube

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kind says how objects of a list are decoded from protobuf.
type kind struct {
	name   string
	unread *unread // nil: all is read

	// objects returns a function for one list that returns an empty object for each of its
	// objects. It may use the memory of the last one again.
	objects func() func() protobufObject
}

// protobufObject is an object that is decoded from protobuf.
type protobufObject interface {
	object
	Unmarshal([]byte) error
}

// serviceKind returns the kind of Services. All Services of a list share an object, whose
// lists and maps keep their memory: conversion copies what it keeps.
func serviceKind() kind {
	return kind{kindServices, unreadService(), func() func() protobufObject {
		var svc corev1.Service
		return func() protobufObject {
			spec := corev1.ServiceSpec{Ports: svc.Spec.Ports[:0], ClusterIPs: svc.Spec.ClusterIPs[:0], IPFamilies: svc.Spec.IPFamilies[:0]}
			svc = corev1.Service{ObjectMeta: emptied(&svc.ObjectMeta), Spec: spec}
			return &svc
		}
	}}
}

// sliceKind returns the kind of EndpointSlices, which share an object as Services do.
func sliceKind() kind {
	return kind{kindSlices, unreadSlice(), func() func() protobufObject {
		var es discoveryv1.EndpointSlice
		return func() protobufObject {
			es = discoveryv1.EndpointSlice{ObjectMeta: emptied(&es.ObjectMeta), Endpoints: es.Endpoints[:0], Ports: es.Ports[:0]}
			return &es
		}
	}}
}

// newObjects returns the kind's objects as separate values.
func newObjects(object func() protobufObject) func() func() protobufObject {
	return func() func() protobufObject { return object }
}

func emptied(m *metav1.ObjectMeta) metav1.ObjectMeta {
	clear(m.Labels)
	clear(m.Annotations)
	return metav1.ObjectMeta{Labels: m.Labels, Annotations: m.Annotations}
}
