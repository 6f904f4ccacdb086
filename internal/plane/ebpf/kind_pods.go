package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/process"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/work"
)

const (
	// searchRest is the pause after a search for pods as a multiple of its duration: searches are expensive.
	searchRest = 20

	// The search is repeated every maxSearch. While there are pods without an address, which are being made, the pauses
	// double from minSearch to maxSearch.
	minSearch, maxSearch = 50 * time.Millisecond, time.Minute
)

// clients is the map of clients: a bpf.Conn.
type clients interface {
	SetPods(pods []bpf.Pod) error
	NetNS() uint64
}

// namespaces are the network namespaces of a node: netns.Namespaces and netns.WatchLinks.
type namespaces struct {
	list  func(context.Context) ([]netns.Namespace, error)
	watch func(ctx context.Context, changed func()) error
}

// podFinder finds the network namespaces of the pods of this node, and their source addresses, and writes them with
// the primary addresses of the node. A pod is
// attached to the namespace of the node, or has the address of an endpoint. Namespaces inside of a pod, as of Docker
// or kind, may have the addresses and Services of another cluster: they are left to packets, and so are pods with
// several addresses of a family in the pod CIDRs, whose source depends on routes.
type podFinder struct {
	loop   *work.Loop
	kernel clients
	node   namespaces
	failed func(error)
	asked  atomic.Int64 // when a search was requested last, in nanoseconds since 1970

	mu       sync.Mutex
	detector *route.Detector         // nil: no change was applied yet
	primary  []netip.Addr            // of the node
	services serviceSets[netip.Addr] // endpoints on this node
}

func newPodFinder(kernel clients, node namespaces, failed func(error)) *podFinder {
	p := &podFinder{kernel: kernel, node: node, failed: failed}
	p.loop = work.New(p.update, failed)
	p.loop.Rest = searchRest
	return p
}

// podsOf returns the part that finds pods.
func podsOf(s plane.Setup, o bpf.Options, conn *bpf.Conn) plane.Part {
	if err := sees(o.Cgroup); err != nil {
		s.Log.Warn("Pods are served packet by packet: this process does not find or enter all of their network namespaces; "+
			"run it in the PID namespace of the node (hostPID: true), with CAP_SYS_ADMIN and CAP_SYS_PTRACE", "error", err)
	}
	node := namespaces{
		list:  func(ctx context.Context) ([]netns.Namespace, error) { return netns.Namespaces(ctx, s.NetNS) },
		watch: func(ctx context.Context, changed func()) error { return netns.WatchLinks(ctx, s.NetNS, changed) },
	}
	p := newPodFinder(conn, node, func(err error) {
		s.Log.Error("Cannot find some new pods; their connections are served packet by packet until then; retrying",
			"error", err)
	})
	return plane.Part{Run: p.Run, Follower: p}
}

// sees returns an error unless this process finds the network namespaces of all processes in a cgroup, and may enter
// them.
func sees(cgroup string) error {
	capabilities, err := process.Capabilities()
	if err != nil {
		return err
	}
	for _, c := range []string{"CAP_SYS_ADMIN", "CAP_SYS_PTRACE"} {
		if !slices.Contains(capabilities, c) {
			return errors.New(c + " is missing")
		}
	}
	if !netns.SeesAll(cgroup) {
		return errors.New("processes of the node are not visible")
	}
	return nil
}

// Applied implements plane.Follower.
func (p *podFinder) Applied(change route.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.services.apply(change, endpointsHere)
	if p.detector == nil || change.OldHost != nil {
		detector := change.Table.Host.Detector
		p.detector, p.primary = &detector, change.Table.Host.Primary
		p.search()
	}
}

// endpointsHere returns the addresses of the endpoints of a Service that may be on this node.
func endpointsHere(svc *route.Service) map[netip.Addr]bool {
	if svc == nil {
		return nil
	}
	all := map[netip.Addr]bool{}
	for i := range svc.Ports {
		for _, a := range svc.Ports[i].Here {
			all[a] = true
		}
	}
	return all
}

// search makes Run search for pods soon.
func (p *podFinder) search() {
	p.asked.Store(time.Now().UnixNano())
	p.loop.Wake()
}

// Run searches for pods after the start, after a change of the node or of its links, and every maxSearch, until the
// context ends. It returns nil then.
func (p *podFinder) Run(ctx context.Context) error {
	links := work.New(func(ctx context.Context) (time.Duration, error) {
		return 0, p.node.watch(ctx, p.search)
	}, p.failed)
	var watch sync.WaitGroup
	watch.Go(func() { _ = links.Run(ctx) }) // nil
	defer watch.Wait()
	return p.loop.Run(ctx)
}

// update lists the namespaces, and writes the pods among them. Before the first change it leaves those of an earlier
// run. It returns the time until the next search.
func (p *podFinder) update(ctx context.Context) (time.Duration, error) {
	p.mu.Lock()
	started := p.detector != nil
	p.mu.Unlock()
	if !started {
		return 0, nil
	}
	all, err := p.node.list(ctx)
	if err != nil && len(all) == 0 {
		return 0, err
	}
	if failed := p.kernel.SetPods(append([]bpf.Pod{p.host()}, p.choose(all)...)); failed != nil {
		return 0, failed
	}
	if !slices.ContainsFunc(all, func(n netns.Namespace) bool { return n.Attached && len(n.Addrs) == 0 }) {
		return maxSearch, err
	}
	return min(max(time.Since(time.Unix(0, p.asked.Load())), minSearch), maxSearch), err
}

// host returns the namespace of the node.
func (p *podFinder) host() bpf.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := bpf.Pod{NetNS: p.kernel.NetNS()}
	for _, a := range p.primary {
		if a.Is4() {
			n.IPv4 = a
		} else {
			n.IPv6 = a
		}
	}
	return n
}

// choose returns the namespaces that are those of pods.
func (p *podFinder) choose(all []netns.Namespace) (found []bpf.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	endpoints := p.services.all()
	isEndpoint := func(a netip.Addr) bool { return endpoints[a] }
	for _, n := range all {
		pod := bpf.Pod{NetNS: n.Cookie, IPv4: p.source(n, route.IPv4), IPv6: p.source(n, route.IPv6)}
		if (n.Attached || slices.ContainsFunc(n.Addrs, isEndpoint)) && (pod.IPv4.IsValid() || pod.IPv6.IsValid()) {
			found = append(found, pod)
		}
	}
	return found
}

// source returns the only address of a family in a namespace that is one of a pod of this node.
func (p *podFinder) source(n netns.Namespace, f route.Family) (own netip.Addr) {
	for _, a := range n.Addrs {
		if route.FamilyOf(a) != f || !isPod(p.detector, a) {
			continue
		}
		if own.IsValid() {
			return netip.Addr{} // which one it uses depends on routes
		}
		own = a
	}
	return own
}
