package kube

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

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

// resource is a kind of object on an API server. It implements lister.
type resource struct {
	kind
	client    *rest.RESTClient
	params    runtime.ParameterCodec
	json      runtime.Decoder // of lists that are not in protobuf
	namespace string          // empty: all, or the kind has none
}

// List implements lister.
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
	if counted.err != nil {
		return m, counted.broken(server)
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

// Watch implements lister.
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

// Read implements io.Reader.
func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.bytes += n
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// broken returns the error of an answer that breaks off. The cause is text only: a server
// that began to answer is not one that does not answer.
func (r *countingReader) broken(from *url.URL) error {
	return fmt.Errorf("the answer of %s broke off after %d bytes: %s", base(from.String()), r.bytes, r.err.Error())
}
