package kube

import (
	"context"
	"errors"
	"net/url"
	"reflect"
	"syscall"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// lister is the part of a typed client that is used; L is the list type.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// observed reports the outcome of each request of a lister to a contact.
type observed[L runtime.Object] struct {
	api  lister[L]
	kind string
	by   *contact
}

// List implements lister.
func (l observed[L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	return insist(ctx, l.by.retry, func() (L, error) { return l.list(ctx, o) })
}

// Watch implements lister.
func (l observed[L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return insist(ctx, l.by.retry, func() (watch.Interface, error) { return l.watch(ctx, o) })
}

// insist repeats a request until the server answers or the context ends. A
// reflector would wait between tries for up to half a minute, and be as late when
// the server is back. Of all feeds that wait, only the holder of contact.retry
// sends a request every second or two. Slow answers are left to the reflector and
// its back-off.
func insist[T any](ctx context.Context, turn chan struct{}, request func() (T, error)) (T, error) {
	answer, err := request()
	if !unanswered(err) {
		return answer, err
	}
	select {
	case <-ctx.Done():
		return answer, err
	case turn <- struct{}{}:
		defer func() { <-turn }()
	}
	pause := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 6, Cap: time.Second}
	for {
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(pause.Step()):
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

func (l observed[L]) list(ctx context.Context, o metav1.ListOptions) (L, error) {
	r := l.by.begin(l.kind)
	list, err := l.api.List(ctx, o)
	switch {
	case err == nil:
		r.succeeded()
	case !isStale(err):
		r.failed(ctx, err)
	}
	return list, err
}

func (l observed[L]) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	r := l.by.begin(l.kind)
	w, err := l.api.Watch(ctx, o)
	switch {
	case err != nil && isStale(err):
	case err != nil && o.SendInitialEvents != nil && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		// Not every server streams lists; the list that follows reports the failure.
	case err != nil:
		r.failed(ctx, err)
	case reflect.TypeOf(w) == reflect.TypeOf(watch.NewEmptyWatch()):
		err = &url.Error{Op: "Watch", Err: errLost}
		r.failed(ctx, err)
		return nil, err
	default:
		r.succeeded()
	}
	return w, err
}

// errLost is the client's error after some watches that ended without any event: the
// peer closes each connection, as a load balancer without servers does.
var errLost = errors.New("connections are closed without an answer")

// isStale reports whether a resource version is too old, which a new list mends.
func isStale(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// listWatch lists and watches what choose selects on the server.
func listWatch[L runtime.Object](api lister[L], choose func(*metav1.ListOptions)) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			return api.Watch(ctx, o)
		},
	}
}

// optionalLister lists ServiceCIDRs if the server has them. A server without this
// kind, or that forbids to list it, counts as listed.
type optionalLister struct {
	lister[*networkingv1.ServiceCIDRList]

	done func()
}

// List implements lister.
func (l *optionalLister) List(ctx context.Context, o metav1.ListOptions) (*networkingv1.ServiceCIDRList, error) {
	list, err := l.lister.List(ctx, o)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) {
		l.done()
	}
	return list, err
}
