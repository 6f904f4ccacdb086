package ebpf

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/kernel/netns"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// searchFactor is the pause after a search for pods as a multiple of its duration, and minSearch the least pause.
	searchFactor = 50
	minSearch    = 50 * time.Millisecond

	// ignoreTime is how long clients in a namespace that is no pod's cause no other search.
	ignoreTime = time.Minute

	searchRetry = 5 * time.Second
)

// podMap are the pods for which programs decide: bpf.Conn.
type podMap interface {
	SetPods([]bpf.Pod) error
	UnknownClients(ctx context.Context, do func(netns uint64)) error
}

// podFinder finds the network namespaces of the pods of this node, and their source addresses: those that are attached to the namespace of the node, or
// have the address of an endpoint. Namespaces inside of a pod, as of Docker or kind, may have the addresses and Services of another cluster: they
// are left to packets, and so are pods with several addresses of a family in the pod CIDRs, whose source depends on routes.
type podFinder struct {
	kernel podMap
	list   func(context.Context) ([]netns.Namespace, error)
	failed func(error)
	wake   chan struct{}

	mu       sync.Mutex
	detector *route.Detector                      // nil: no change was applied yet
	services map[cluster.Name]map[netip.Addr]bool // endpoints on this node
	ignored  map[uint64]time.Time                 // namespaces that are no pod's, and when that was found
}

func newPodFinder(kernel podMap, list func(context.Context) ([]netns.Namespace, error), failed func(error)) *podFinder {
	return &podFinder{
		kernel: kernel, list: list, failed: failed, wake: make(chan struct{}, 1),
		services: map[cluster.Name]map[netip.Addr]bool{}, ignored: map[uint64]time.Time{},
	}
}

// podsOf returns the part that finds pods.
func podsOf(s plane.Setup, conn *bpf.Conn) plane.Part {
	p := newPodFinder(conn, func(ctx context.Context) ([]netns.Namespace, error) { return netns.Namespaces(ctx, s.NetNS) }, func(err error) {
		s.Log.Error("Some new pods may not be found: their connections are served packet by packet for now; it will be tried again", "error", err)
	})
	return plane.Part{Run: p.Run, Follower: p, SetLocal: func([]netip.Addr) { p.search() }} // links of new pods have addresses on the node
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

// Run searches for pods after the start, after a change of the node or of its addresses, and when an unknown client connects to a Service, until the context
// ends. It returns nil then.
func (p *podFinder) Run(ctx context.Context) error {
	var reports sync.WaitGroup
	reports.Go(func() { p.read(ctx) })
	defer reports.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
		began := time.Now()
		pause := time.Duration(0)
		if err := p.update(ctx); err != nil && ctx.Err() == nil {
			p.failed(err)
			pause = searchRetry
			p.search()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(pause, minSearch, searchFactor*time.Since(began))):
		}
	}
}

// read reads the reports of programs.
func (p *podFinder) read(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.kernel.UnknownClients(ctx, p.unknown); err != nil {
			p.failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(searchRetry):
		}
	}
}

// update lists the namespaces, and writes the pods among them.
func (p *podFinder) update(ctx context.Context) error {
	all, err := p.list(ctx)
	if err != nil && len(all) == 0 {
		return err
	}
	if failed := p.kernel.SetPods(p.choose(all)); failed != nil {
		return failed
	}
	return err
}

// choose returns the namespaces that are those of pods.
func (p *podFinder) choose(all []netns.Namespace) (found []bpf.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ignored = map[uint64]time.Time{}
	if p.detector == nil {
		return nil
	}
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
