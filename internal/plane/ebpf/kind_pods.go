package ebpf

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// searchFactor is the pause after a search for pods as a multiple of its duration, and minSearch the least pause. While there are pods
	// without an address, which are being made, the search is repeated, after pauses that double up to maxSearch.
	searchFactor         = 20
	minSearch, maxSearch = 50 * time.Millisecond, time.Minute

	// ignoreTime is how long clients in a namespace that is no pod's cause no other search.
	ignoreTime = time.Minute

	searchRetry = 5 * time.Second // after an error
)

// podMap are the pods for which programs decide: bpf.Conn.
type podMap interface {
	SetPods([]bpf.Pod) error
	UnknownClients(ctx context.Context, do func(netns uint64)) error
}

// namespaces are the network namespaces of a node: netns.Namespaces and netns.WatchLinks.
type namespaces struct {
	list  func(context.Context) ([]netns.Namespace, error)
	watch func(ctx context.Context, changed func()) error
}

// podFinder finds the network namespaces of the pods of this node, and their source addresses: those that are attached to the namespace of the node, or
// have the address of an endpoint. Namespaces inside of a pod, as of Docker or kind, may have the addresses and Services of another cluster: they
// are left to packets, and so are pods with several addresses of a family in the pod CIDRs, whose source depends on routes.
type podFinder struct {
	kernel podMap
	node   namespaces
	failed func(error)
	wake   chan struct{}

	mu       sync.Mutex
	detector *route.Detector                      // nil: no change was applied yet
	services map[cluster.Name]map[netip.Addr]bool // endpoints on this node
	ignored  map[uint64]time.Time                 // namespaces that are no pod's, and when that was found
}

func newPodFinder(kernel podMap, node namespaces, failed func(error)) *podFinder {
	return &podFinder{
		kernel: kernel, node: node, failed: failed, wake: make(chan struct{}, 1),
		services: map[cluster.Name]map[netip.Addr]bool{}, ignored: map[uint64]time.Time{},
	}
}

// podsOf returns the part that finds pods.
func podsOf(s plane.Setup, o bpf.Options, conn *bpf.Conn) plane.Part {
	err := netns.MayVisit()
	if err == nil && !netns.SeesAll(o.Cgroup) {
		err = errors.New("processes of the node are not visible")
	}
	if err != nil {
		s.Log.Warn("Pods are served packet by packet: this process does not find or enter all of their network namespaces; "+
			"run it in the PID namespace of the node (hostPID: true), with CAP_SYS_ADMIN and CAP_SYS_PTRACE", "error", err)
	}
	node := namespaces{
		list:  func(ctx context.Context) ([]netns.Namespace, error) { return netns.Namespaces(ctx, s.NetNS) },
		watch: func(ctx context.Context, changed func()) error { return netns.WatchLinks(ctx, s.NetNS, changed) },
	}
	p := newPodFinder(conn, node, func(err error) {
		s.Log.Error("Some new pods may not be found: their connections are served packet by packet for now; it will be tried again", "error", err)
	})
	return plane.Part{Run: p.Run, Follower: p}
}

// Applied implements plane.Follower.
func (p *podFinder) Applied(change route.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.detector == nil {
		for name, svc := range change.Table.Services {
			p.set(name, svc)
		}
	}
	for _, t := range change.Touched {
		p.set(t.Name, t.New)
	}
	if p.detector == nil || change.OldHost != nil {
		detector := change.Table.Host.Detector
		p.detector = &detector
		p.search()
	}
}

// set replaces the endpoints of a Service.
func (p *podFinder) set(name cluster.Name, svc *route.Service) {
	delete(p.services, name)
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		for _, a := range svc.Ports[i].Here {
			if p.services[name] == nil {
				p.services[name] = map[netip.Addr]bool{}
			}
			p.services[name][a] = true
		}
	}
}

// search makes Run search for pods soon.
func (p *podFinder) search() {
	select {
	case p.wake <- struct{}{}:
	default: // it will
	}
}

// unknown makes Run search for pods, unless it has found before that the namespace is no pod's.
func (p *podFinder) unknown(netns uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, is := p.ignored[netns]; !is || time.Since(at) >= ignoreTime {
		p.search()
	}
}

// Run searches for pods after the start, after a change of the node or of its links, and when an unknown client connects to a Service, until the
// context ends. It returns nil then.
func (p *podFinder) Run(ctx context.Context) error {
	failed := once(p.failed)
	var events sync.WaitGroup
	events.Go(func() { p.follow(ctx, func() error { return p.kernel.UnknownClients(ctx, p.unknown) }) })
	events.Go(func() { p.follow(ctx, func() error { return p.node.watch(ctx, p.search) }) })
	defer events.Wait()
	again := time.NewTimer(maxSearch)
	defer again.Stop()
	pause := minSearch
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
			pause = minSearch
		case <-again.C:
			pause = min(2*pause, maxSearch)
		}
		began := time.Now()
		unfinished, err := p.update(ctx)
		if ctx.Err() == nil {
			failed(err)
		}
		switch {
		case err != nil:
			again.Reset(searchRetry)
		case unfinished:
			again.Reset(pause)
		default:
			again.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(minSearch, searchFactor*time.Since(began))):
		}
	}
}

// follow runs a function that waits for events, and runs it again after an error, until the context ends.
func (p *podFinder) follow(ctx context.Context, wait func() error) {
	failed := once(p.failed)
	for ctx.Err() == nil {
		failed(wait())
		select {
		case <-ctx.Done():
		case <-time.After(searchRetry):
		}
	}
}

// update lists the namespaces, and writes the pods among them. Before the first change it leaves those of an earlier run. It reports whether
// pods without an address are left.
func (p *podFinder) update(ctx context.Context) (unfinished bool, err error) {
	if !p.started() {
		return false, nil
	}
	all, err := p.node.list(ctx)
	if err != nil && len(all) == 0 {
		return false, err
	}
	if failed := p.kernel.SetPods(p.choose(all)); failed != nil {
		return false, failed
	}
	return slices.ContainsFunc(all, func(n netns.Namespace) bool { return n.Attached && len(n.Addrs) == 0 }), err
}

func (p *podFinder) started() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.detector != nil
}

// choose returns the namespaces that are those of pods.
func (p *podFinder) choose(all []netns.Namespace) (found []bpf.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ignored = map[uint64]time.Time{}
	endpoints := map[netip.Addr]bool{}
	for _, addrs := range p.services {
		maps.Copy(endpoints, addrs)
	}
	isEndpoint := func(a netip.Addr) bool { return endpoints[a] }
	for _, n := range all {
		pod := bpf.Pod{NetNS: n.Cookie, IPv4: p.source(n, route.IPv4), IPv6: p.source(n, route.IPv6)}
		if (n.Attached || slices.ContainsFunc(n.Addrs, isEndpoint)) && (pod.IPv4.IsValid() || pod.IPv6.IsValid()) {
			found = append(found, pod)
		} else if len(n.Addrs) > 0 { // without one it may be the network of a pod that is being made
			p.ignored[n.Cookie] = time.Now()
		}
	}
	return found
}

// source returns the only address of a family in a namespace that is one of a pod of this node.
func (p *podFinder) source(n netns.Namespace, f route.Family) (own netip.Addr) {
	prefixes := podPrefixes(p.detector, f)
	for _, a := range n.Addrs {
		isPod := func(prefix netip.Prefix) bool { return prefix.Contains(a) }
		if route.FamilyOf(a) != f || !slices.ContainsFunc(prefixes, isPod) {
			continue
		}
		if own.IsValid() {
			return netip.Addr{} // which one it uses depends on routes
		}
		own = a
	}
	return own
}
