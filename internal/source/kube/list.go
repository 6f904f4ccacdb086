package kube

import (
	"context"
	"log/slog"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// lister is the part of a typed client that is used; L is the list type.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatch lists and watches what choose selects on the server. The client
// tells whether a list may come as a stream, which saves memory here.
func listWatch[L runtime.Object](client any, api lister[L], choose func(*metav1.ListOptions)) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			return api.Watch(ctx, o)
		},
	}, client)
}

// optionalLister lists ServiceCIDRs where there are any. A server that knows
// none counts as having been listed; one goroutine uses it.
type optionalLister struct {
	api  lister[*networkingv1.ServiceCIDRList]
	log  *slog.Logger
	done func()

	said string // the last failure
}

// List implements lister.
func (l *optionalLister) List(ctx context.Context, o metav1.ListOptions) (*networkingv1.ServiceCIDRList, error) {
	list, err := l.api.List(ctx, o)
	if err == nil {
		l.said = ""
		return list, nil
	}
	absent := apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)
	if absent {
		l.done()
	}
	if text := err.Error(); text != l.said && ctx.Err() == nil {
		l.said = text
		l.log.Warn("ServiceCIDRs cannot be listed; unused service addresses are not dropped until they can", "error", err)
	}
	return list, err
}

// Watch implements lister.
func (l *optionalLister) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return l.api.Watch(ctx, o)
}
