// Package kube feeds a cluster.Store from a Kubernetes API server.
//
// Reflectors list and watch. Each object is converted at once and goes straight
// into the Store, so that no second copy of the objects is kept.
package kube

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// Options for New.
type Options struct {
	Client   *Client
	NodeName string // of the own Node; empty to watch no Node

	Convert convert.Converter // without Strings

	Report func([]route.Problem) // receives each problem of an object once; may be nil
	Log    *slog.Logger
}

// Source watches an API server. It is the only source of Services and EndpointSlices of its Store.
type Source struct {
	store   *cluster.Store
	options Options
	convert convert.Converter
	report  *source.Reporter
	health  *serverHealth
	feeds   []feed
	pause   wait.Backoff // of each feed after a failure
}

// Kinds of objects, as RBAC calls them.
const (
	kindServices     = "services"
	kindSlices       = "endpointslices"
	kindNodes        = "nodes"
	kindServiceCIDRs = "servicecidrs"
	kindPeers        = "nodes of the cluster"
)

// feed is one kind of object: its lister and its sink.
type feed struct {
	name   string
	object any // of the kind
	from   lister
	labels string // selector of objects on the server; empty: all
	fields string // as labels
	to     *sink

	optional bool // a server may not have the kind or may forbid it, which then counts as listed
}

// New assembles a Source and announces its feeds to the Store. Nothing happens before Run.
func New(store *cluster.Store, o Options) *Source {
	s := &Source{
		store:   store,
		options: o,
		convert: o.Convert,
		report:  source.NewReporter(o.Report),
		health:  newServerHealth(o.Log, o.Client.server),
		pause:   wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 30 * time.Second},
	}
	s.convert.Strings, s.convert.PodsOf = convert.NewInterner(), o.NodeName
	s.feeds = []feed{s.services(), s.slices(), s.serviceCIDRs()}
	if o.NodeName != "" {
		s.feeds = append(s.feeds, s.node())
	}
	return s
}

// Run watches until the context ends. It logs each failure once and retries for ever, at growing intervals.
func (s *Source) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(demoted{s.options.Log.Handler()}))
	var running sync.WaitGroup
	for _, f := range s.feeds {
		running.Go(func() { s.follow(ctx, f) })
	}
	running.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.store.Peers().Wanted():
			s.follow(ctx, s.peers())
		}
	})
	running.Wait()
	return nil
}

// follow lists and watches one kind of object until the context ends.
func (s *Source) follow(ctx context.Context, f feed) {
	from, pause := newListing(f, observed{f.from, f.name, s.health}), s.pause
	cache.NewReflectorWithOptions(from, f.object, f.to, cache.ReflectorOptions{
		Name:    f.name,
		Backoff: &pause,
		Clock:   contextClock{done: ctx},
	}).RunWithContext(ctx)
}

// State returns the state of the Source. It is connected from the first answer of the server until the server stops
// answering; a refusal is an answer. It is safe for concurrent use.
func (s *Source) State() source.State {
	st := s.health.state()
	st.From = s.options.Client.server
	st.Problems = s.report.Count()
	st.Objects = map[string]int{}
	for _, f := range s.feeds {
		if at := f.to.last.Load(); at != nil && at.After(st.LastEvent) {
			st.LastEvent = *at
		}
		if f.to.listed.Load() {
			st.Objects[f.name] = int(f.to.objects.Load())
		}
	}
	return st
}

// services are the Services for this proxy. The server leaves out most others, conversion the rest.
func (s *Source) services() feed {
	return feed{
		name:   kindServices,
		object: &corev1.Service{},
		from:   s.options.Client.services(metav1.NamespaceAll),
		labels: "!" + convert.LabelProxyName,
		fields: fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String(),
		to: &sink{
			put: func(obj object) []route.Problem {
				svc, problems := s.convert.Service(obj.(*corev1.Service))
				s.store.SetService(svc)
				return problems
			},
			drop:   s.store.DeleteService,
			names:  s.store.ServiceNames,
			report: s.reporter("Service"),
			done:   s.store.Feed(),
		},
	}
}

// slices are the EndpointSlices of Services that have a ClusterIP.
func (s *Source) slices() feed {
	put := func(obj object) []route.Problem {
		sl, problems := s.convert.Slice(obj.(*discoveryv1.EndpointSlice))
		if sl != nil {
			s.store.SetSlice(sl)
		} else {
			s.store.DeleteSlice(nameOf(obj))
		}
		return problems
	}
	return feed{
		name:   kindSlices,
		object: &discoveryv1.EndpointSlice{},
		from:   s.options.Client.slices,
		labels: "!" + convert.LabelHeadless,
		to: &sink{
			put:    put,
			drop:   s.store.DeleteSlice,
			names:  s.store.SliceNames,
			report: s.reporter("EndpointSlice"),
			done:   s.store.Feed(),
		},
	}
}

// node is the own Node alone.
func (s *Source) node() feed {
	own := cluster.Name{Name: s.options.NodeName}
	return feed{
		name:   kindNodes,
		object: &corev1.Node{},
		from:   s.options.Client.nodes,
		fields: fields.OneTermEqualSelector(metav1.ObjectNameField, own.Name).String(),
		to: &sink{
			put: func(obj object) []route.Problem {
				node, problems := s.convert.Node(obj.(*corev1.Node))
				if nameOf(obj) == own {
					s.store.SetNode(node)
				}
				return problems
			},
			drop: func(name cluster.Name) {
				if name == own {
					s.store.SetNode(leaving(s.store.Node()))
				}
			},
			names: func() []cluster.Name { return []cluster.Name{own} },
			absent: []route.Problem{{
				Object: convert.Object("Node", own),
				Reason: "does not exist in the cluster (yet): --hostname-override names another",
			}},
			report: s.reporter("Node"),
			done:   s.store.Feed(),
		},
	}
}

// peers are all Nodes, which are watched only if a part wants them: there may be many, and each changes often.
func (s *Source) peers() feed {
	to := s.store.Peers()
	return feed{
		name:   kindPeers,
		object: &corev1.Node{},
		from:   s.options.Client.nodes,
		to: &sink{
			put: func(obj object) []route.Problem {
				node, _ := s.convert.Node(obj.(*corev1.Node)) // each node reports its own problems
				to.Set(node)
				return nil
			},
			drop: func(name cluster.Name) { to.Delete(name.Name) },
			names: func() (names []cluster.Name) {
				for _, name := range to.Names() {
					names = append(names, cluster.Name{Name: name})
				}
				return names
			},
			report: func(cluster.Name, []route.Problem) {},
			done:   to.Listed,
		},
	}
}

// leaving returns a Node that was deleted from the cluster: its last state, as its
// rules stay, but marked as leaving, so that load balancers send nothing new.
func leaving(n *cluster.Node) *cluster.Node {
	if n == nil {
		return nil
	}
	gone := *n
	gone.Leaving = true
	return &gone
}

// serviceCIDRs are all ServiceCIDRs; clusters before 1.33 may have none, or not let a proxy read them.
func (s *Source) serviceCIDRs() feed {
	cidrs := map[cluster.Name][]netip.Prefix{} // of each object, as two may have the same
	return feed{
		name:   kindServiceCIDRs,
		object: &networkingv1.ServiceCIDR{},
		from:   s.options.Client.cidrs,
		to: &sink{
			put: func(obj object) []route.Problem {
				own, problems := s.convert.ServiceCIDR(obj.(*networkingv1.ServiceCIDR))
				cidrs[nameOf(obj)] = own
				return problems
			},
			drop:  func(name cluster.Name) { delete(cidrs, name) },
			names: func() []cluster.Name { return slices.Collect(maps.Keys(cidrs)) },
			flush: func() {
				s.store.SetServiceCIDRs(slices.Concat(slices.Collect(maps.Values(cidrs))...))
			},
			report: s.reporter("ServiceCIDR"),
			done:   s.store.Feed(),
		},
		optional: true,
	}
}

// reporter returns a function that reports problems of objects of one kind.
func (s *Source) reporter(kind string) func(cluster.Name, []route.Problem) {
	return func(name cluster.Name, problems []route.Problem) {
		if len(problems) == 0 && s.report.Count() == 0 {
			return // as for nearly all objects; saves the text
		}
		s.report.Set(convert.Object(kind, name), problems)
	}
}

// sink puts the objects of a kind into the Store as they arrive. It keeps none. It implements cache.ReflectorStore.
type sink struct {
	put    func(object) []route.Problem // converts and stores an object; returns its problems
	drop   func(cluster.Name)
	names  func() []cluster.Name // of the objects put and not dropped, or more
	flush  func()                // after each change and each list; may be nil
	report func(cluster.Name, []route.Problem)
	absent []route.Problem // of a missing object
	done   func()          // after the first list

	arrived int                       // objects of the list that arrives
	missing map[cluster.Name]struct{} // objects that were there before this list, and are not in it so far

	listed  atomic.Bool               // once at least
	objects atomic.Int64              // how many there are
	last    atomic.Pointer[time.Time] // when the last list or change came
}

// begin is called before a list.
func (s *sink) begin() {
	s.arrived, s.missing = 0, map[cluster.Name]struct{}{}
	for _, name := range s.names() {
		s.missing[name] = struct{}{}
	}
}

// arrive puts an object of a list into the Store. It stays there even if the list fails later.
func (s *sink) arrive(obj object) error {
	s.arrived++
	s.take(obj)
	delete(s.missing, nameOf(obj))
	return nil
}

// Replace is called when a list is complete. Objects that are not in it were deleted between two watches.
func (s *sink) Replace([]any, string) error {
	for name := range s.missing {
		s.remove(name)
	}
	s.missing = nil
	s.objects.Store(int64(s.arrived))
	s.listed.Store(true)
	s.changed()
	s.done()
	return nil
}

func (s *sink) Add(obj any) error {
	s.objects.Add(1)
	return s.Update(obj)
}

func (s *sink) Update(obj any) error {
	s.take(obj.(object))
	s.changed()
	return nil
}

func (s *sink) Delete(obj any) error {
	s.objects.Add(-1)
	s.remove(nameOf(obj.(object)))
	s.changed()
	return nil
}

func (s *sink) Resync() error { return nil }

func (s *sink) take(obj object) { s.report(nameOf(obj), s.put(obj)) }

func (s *sink) remove(name cluster.Name) {
	s.report(name, s.absent)
	s.drop(name)
}

// changed is called after each change and each list.
func (s *sink) changed() {
	s.last.Store(new(time.Now()))
	if s.flush != nil {
		s.flush()
	}
}

func nameOf(obj object) cluster.Name {
	return cluster.Name{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}
