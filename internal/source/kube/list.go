package kube

import (
	"context"
	"errors"
	"net/url"
	"reflect"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// observed reports the outcome of each request of a lister to the health of its server.
type observed struct {
	api  lister
	kind string
	to   *serverHealth
}

func (l observed) List(ctx context.Context, o metav1.ListOptions, take func(object) error) (metav1.ListMeta, error) {
	return retryUnanswered(ctx, l.to.retries, func() (metav1.ListMeta, error) {
		r := l.to.begin(l.kind)
		list, err := l.api.List(ctx, o, take)
		r.ended(ctx, err)
		return list, err
	})
}

func (l observed) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return retryUnanswered(ctx, l.to.retries, func() (watch.Interface, error) {
		r := l.to.begin(l.kind)
		w, err := l.api.Watch(ctx, o)
		if err == nil && reflect.TypeOf(w) == reflect.TypeOf(watch.NewEmptyWatch()) {
			w, err = nil, &url.Error{Op: "Watch", Err: errLost}
		}
		r.ended(ctx, err)
		return w, err
	})
}

// retries paces the retries of the feeds of a Source.
type retries struct {
	holder chan struct{} // held by the feed that retries while the server does not answer
	pause  wait.Backoff
}

func newRetries() retries {
	return retries{
		holder: make(chan struct{}, 1),
		pause:  wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 6, Cap: time.Second},
	}
}

// retryUnanswered repeats a request until the server answers or the context ends. A reflector would wait between
// attempts for up to half a minute, and notice as late that the server is back. Of all feeds that wait, only the holder
// of the retries sends a request every second or two. Slow answers are left to the reflector and its back-off.
func retryUnanswered[T any](ctx context.Context, by retries, request func() (T, error)) (T, error) {
	answer, err := request()
	if !unanswered(err) {
		return answer, err
	}
	select {
	case <-ctx.Done():
		return answer, err
	case by.holder <- struct{}{}:
		defer func() { <-by.holder }()
	}
	for {
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(by.pause.Step()):
		}
		if answer, err = request(); !unanswered(err) {
			return answer, err
		}
	}
}

// unanswered reports whether a request failed because no server took it.
func unanswered(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, errLost)
}

// errLost is the client's error after some watches that ended without any event: the
// peer closes each connection, as a load balancer without servers does.
var errLost = errors.New("connections are closed without an answer")

// isStale reports whether a resource version is too old, which a new list corrects.
func isStale(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// listing lists and watches for a reflector. Objects of a list go to a sink as they arrive, and the reflector gets an
// empty list. Why it is a list and not a stream of events: docs/decisions/0031-one-list-at-the-start.md.
type listing struct{ *cache.ListWatch }

func newListing(f feed, from lister) listing {
	return listing{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector, o.FieldSelector = f.labels, f.fields
			if o.Continue == "" {
				f.to.begin()
			}
			m, err := from.List(ctx, o, f.to.arrive)
			if f.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)) {
				f.to.done()
			}
			return &metav1.PartialObjectMetadataList{ListMeta: m}, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector, o.FieldSelector = f.labels, f.fields
			return from.Watch(ctx, o)
		},
	}}
}

// IsWatchListSemanticsUnSupported makes the reflector list; client-go defines the name.
func (listing) IsWatchListSemanticsUnSupported() bool { return true }
