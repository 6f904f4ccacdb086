//go:build linux

package fetch

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Bare is a way to fetch both kinds at once over a new connection, and to decode them.
type Bare func(context.Context, *rest.Config) (Counts, error)

// List requests one List of each kind from the watch cache.
func List(ctx context.Context, config *rest.Config) (Counts, error) {
	return both(ctx, config, func(ctx context.Context, r requests, o metav1.ListOptions) (int, error) {
		list, err := r.list(ctx, fromCache(o))
		if err != nil {
			return 0, err
		}
		return meta.LenList(list), nil
	})
}

// Stream requests a streaming list of each kind (WatchList), the default of client-go.
func Stream(ctx context.Context, config *rest.Config) (Counts, error) {
	return both(ctx, config, func(ctx context.Context, r requests, o metav1.ListOptions) (int, error) {
		w, err := r.watch(ctx, streamed(o))
		if err != nil {
			return 0, err
		}
		defer w.Stop()
		return initial(w.ResultChan())
	})
}

// requests are the requests for one kind.
type requests struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// both fetches both kinds at once.
func both(
	ctx context.Context, config *rest.Config, one func(context.Context, requests, metav1.ListOptions) (int, error),
) (Counts, error) {
	http, err := connect(config)
	if err != nil {
		return Counts{}, err
	}
	defer http.CloseIdleConnections()
	config = rest.CopyConfig(config)
	config.QPS, config.ContentType = -1, contentType
	api, err := kubernetes.NewForConfigAndClient(config, http)
	if err != nil {
		return Counts{}, err
	}
	services, endpoints := api.CoreV1().Services(""), api.DiscoveryV1().EndpointSlices("")
	of := [2]requests{{asObject(services.List), services.Watch}, {asObject(endpoints.List), endpoints.Watch}}
	var counts Counts
	group, ctx := errgroup.WithContext(ctx)
	for i, k := range kinds() {
		group.Go(func() (err error) {
			if counts[i], err = one(ctx, of[i], k.choose); err != nil {
				err = fmt.Errorf("fetch %s: %w", k.path, err)
			}
			return err
		})
	}
	return counts, group.Wait()
}

func asObject[L runtime.Object](
	list func(context.Context, metav1.ListOptions) (L, error),
) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) }
}

// initial counts the objects of a streaming list, up to the bookmark at its end.
func initial(events <-chan watch.Event) (int, error) {
	count := 0
	for e := range events {
		switch e.Type {
		case watch.Added:
			count++
		case watch.Bookmark:
			if o, err := meta.Accessor(e.Object); err == nil && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				return count, nil
			}
		default:
			return count, fmt.Errorf("after %d objects there was an event %s", count, e.Type)
		}
	}
	return count, errors.New("the stream ended before the bookmark")
}
