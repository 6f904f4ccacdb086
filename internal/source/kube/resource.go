package kube

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/metrics"
)

type object interface {
	metav1.Object
	runtime.Object
}

// lister lists and watches one kind of object.
type lister interface {
	// List calls take with each object while the list arrives, and returns the metadata of
	// the list. An object is valid until take returns, without the fields that no proxy reads.
	List(ctx context.Context, o metav1.ListOptions, take func(object) error) (metav1.ListMeta, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// kind says how objects of a list are decoded from protobuf.
type kind struct {
	name   string
	list   listType
	unread *unread // nil: all is read

	// objects returns a function for one list that returns empty objects. It may use the memory of the last one again.
	objects func() func() protobufObject
}

type listType struct{ version, kind string }

// mustBe returns an error for a list of another type, which would delete everything if it is empty.
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

// resource is a kind of object on an API server. It implements lister.
type resource struct {
	kind
	client    *rest.RESTClient
	params    runtime.ParameterCodec
	json      runtime.Decoder // of lists that are not in protobuf
	namespace string          // empty: all, or the kind has none
}

func (r *resource) List(ctx context.Context, o metav1.ListOptions, take func(object) error) (metav1.ListMeta, error) {
	server := r.request(o).URL()
	defer measureRequest(ctx, server, time.Now())
	body, err := r.request(o).Stream(ctx)
	if err != nil {
		return metav1.ListMeta{}, err
	}
	defer func() { _ = body.Close() }()
	counted := &countingReader{from: body}
	m, err := r.decode(bufio.NewReaderSize(counted, 64<<10), take)
	metrics.RequestSize.Observe(ctx, "GET", server.Host, 0)
	metrics.ResponseSize.Observe(ctx, "GET", server.Host, float64(counted.bytes))
	if counted.err != nil { // without its cause: this server does answer
		return m, fmt.Errorf("the answer of %s broke off after %d bytes: %s", base(server), counted.bytes,
			counted.err.Error())
	}
	return m, err
}

// decode reads a list as protobuf or as JSON.
func (r *resource) decode(in *bufio.Reader, take func(object) error) (metav1.ListMeta, error) {
	if prefix, _ := in.Peek(len(protobufPrefix)); string(prefix) == protobufPrefix {
		next, read := r.objects(), []byte(nil)
		return readList(in, r.list, func(encoded []byte) error {
			obj := next()
			if r.unread != nil {
				read = r.unread.trim(read[:0], encoded)
				encoded = read
			}
			if err := obj.Unmarshal(encoded); err != nil {
				return fmt.Errorf("decode one of %s: %w", r.name, err)
			}
			return take(obj)
		})
	}
	return r.decodeJSON(in, take)
}

func (r *resource) decodeJSON(in io.Reader, take func(object) error) (metav1.ListMeta, error) {
	var m metav1.ListMeta
	body, err := io.ReadAll(in)
	if err != nil {
		return m, fmt.Errorf("read a list of %s: %w", r.name, err)
	}
	list, is, err := r.json.Decode(body, nil, nil)
	if err != nil {
		return m, fmt.Errorf("decode a list of %s: %w", r.name, err)
	}
	if err := r.list.mustBe(is.GroupVersion().String(), is.Kind); err != nil {
		return m, err
	}
	of, err := meta.ListAccessor(list)
	if err != nil {
		return m, fmt.Errorf("decode a list of %s: %w", r.name, err)
	}
	m.ResourceVersion, m.Continue = of.GetResourceVersion(), of.GetContinue()
	return m, meta.EachListItem(list, func(o runtime.Object) error { return take(o.(object)) })
}

func (r *resource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return r.request(o).Watch(ctx)
}

func (r *resource) request(o metav1.ListOptions) *rest.Request {
	var timeout time.Duration
	if o.TimeoutSeconds != nil {
		timeout = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	return r.client.Get().
		UseProtobufAsDefaultIfPreferred(true).
		NamespaceIfScoped(r.namespace, r.namespace != "").
		Resource(r.name).
		VersionedParams(&o, r.params).
		Timeout(timeout)
}

// measureRequest reports how long a request took that began at a time, as client-go does if it reads the answer itself.
func measureRequest(ctx context.Context, u *url.URL, began time.Time) {
	metrics.RequestLatency.Observe(ctx, "GET", url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}, time.Since(began))
}

// countingReader counts the bytes of the body of an answer, and keeps its error.
type countingReader struct {
	from  io.Reader
	bytes int
	err   error // nil at the end
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.bytes += n
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}
