package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// sink converts the objects of a reflector and passes them on. It keeps none. It
// implements cache.TransformingStore.
type sink struct {
	convert func(obj any) (any, []route.Problem)
	put     func(*item)
	drop    func(cluster.Name)
	names   func() []cluster.Name // of the objects put and not dropped, or more
	flush   func()                // after each change; may be nil
	report  func(cluster.Name, []route.Problem)
	absent  func(cluster.Name) []route.Problem // problems of a missing object; may be nil
	done    func()                             // after the first Replace

	listed  atomic.Bool               // once at least
	objects atomic.Int64              // how many there are
	last    atomic.Pointer[time.Time] // when the last list or change came
}

// item is a converted object. While a list comes in as a stream the reflector
// holds one of each.
type item struct {
	name     cluster.Name
	value    any
	problems []route.Problem
}

// GetObjectMeta implements metav1.ObjectMetaAccessor: the reflector asks for the
// name. What it returns is large, so it is not kept.
func (it *item) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: it.name.Namespace, Name: it.name.Name}
}

// Transformer converts objects as they come in, so that a long list is never
// held in full.
func (s *sink) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.item(obj) }
}

func (s *sink) item(obj any) (*item, error) {
	if it, ok := obj.(*item); ok {
		return it, nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("read metadata of %T: %w", obj, err)
	}
	it := &item{name: cluster.Name{Namespace: m.GetNamespace(), Name: m.GetName()}}
	it.value, it.problems = s.convert(obj)
	return it, nil
}

// Add implements cache.ReflectorStore.
func (s *sink) Add(obj any) error {
	s.objects.Add(1)
	return s.Update(obj)
}

// Update implements cache.ReflectorStore.
func (s *sink) Update(obj any) error {
	it, err := s.item(obj)
	if err != nil {
		return err
	}
	s.take(it)
	s.settle()
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *sink) Delete(obj any) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("read metadata of %T: %w", obj, err)
	}
	s.objects.Add(-1)
	s.remove(cluster.Name{Namespace: m.GetNamespace(), Name: m.GetName()})
	s.settle()
	return nil
}

// Replace implements cache.ReflectorStore. Objects that are not in the list were
// deleted between two watches.
func (s *sink) Replace(list []any, _ string) error {
	s.objects.Store(int64(len(list)))
	s.listed.Store(true)
	gone := map[cluster.Name]struct{}{}
	for _, name := range s.names() {
		gone[name] = struct{}{}
	}
	for i, obj := range list {
		it, err := s.item(obj)
		if err != nil {
			return err
		}
		list[i] = nil // the memory of a long list may go as it is read
		delete(gone, it.name)
		s.take(it)
	}
	for name := range gone {
		s.remove(name)
	}
	s.settle()
	s.done()
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *sink) Resync() error { return nil }

func (s *sink) take(it *item) {
	s.report(it.name, it.problems)
	s.put(it)
}

func (s *sink) remove(name cluster.Name) {
	var problems []route.Problem
	if s.absent != nil {
		problems = s.absent(name)
	}
	s.report(name, problems)
	s.drop(name)
}

// settle is called after each change.
func (s *sink) settle() {
	s.last.Store(new(time.Now()))
	if s.flush != nil {
		s.flush()
	}
}

// cidrUnion keeps the ServiceCIDRs of each object, because two objects may have the
// same. The reflector's goroutine alone uses it.
type cidrUnion struct {
	store *cluster.Store
	cidrs map[cluster.Name][]netip.Prefix
}

func (u *cidrUnion) put(it *item) {
	if u.cidrs == nil {
		u.cidrs = map[cluster.Name][]netip.Prefix{}
	}
	u.cidrs[it.name] = it.value.([]netip.Prefix)
}

func (u *cidrUnion) drop(name cluster.Name) { delete(u.cidrs, name) }

func (u *cidrUnion) names() []cluster.Name { return slices.Collect(maps.Keys(u.cidrs)) }

func (u *cidrUnion) flush() {
	u.store.SetServiceCIDRs(slices.Concat(slices.Collect(maps.Values(u.cidrs))...))
}
