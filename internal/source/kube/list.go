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

// observed tells a contact how each request of a lister ends.
type observed[L runtime.Object] struct {
	api  lister[L]
	kind string
	by   *contact
}

// List implements lister.
func (l observed[L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	return insist(ctx, l.by.turn, func() (L, error) { return l.list(ctx, o) })
}

// Watch implements lister.
func (l observed[L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return insist(ctx, l.by.turn, func() (watch.Interface, error) { return l.watch(ctx, o) })
}

// insist makes a request until there is somebody who can be asked, or the
// context ends. A reflector would make pauses that grow to half a minute, and be
// as late when the server is back. Of all that wait only one asks, every second
// or two: who has the turn. A server that is there and slow is left to the
// reflector and its pauses.
func insist[T any](ctx context.Context, turn chan struct{}, request func() (T, error)) (T, error) {
	answer, err := request()
	if !nobodyThere(err) {
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
		if answer, err = request(); !nobodyThere(err) {
			return answer, err
		}
	}
}

// nobodyThere reports whether a request failed because nobody took it.
func nobodyThere(err error) bool {
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
		// Not every server streams lists; the list that follows tells.
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

// errLost is what the client makes an empty watch of, after some tries: whoever
// takes the connection closes it, as a load balancer without servers does.
var errLost = errors.New("connections are closed without an answer")

// isStale tells that a version is too old, which a new list mends.
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

// optionalLister lists ServiceCIDRs where there are any. A server that knows
// none, or shows none, counts as having been listed.
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
