// Package sockets destroys UDP sockets that programs have connected to a backend in place of a Service, when that backend no longer
// serves, or the Service has lost the address or port to which the socket was connected. They have no NAT entry in conntrack that could be
// deleted: their packets were never translated.
package sockets

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// secondPass is the time from a change to the second pass: a socket may have chosen the backend just before the change.
	secondPass = 2 * time.Second

	// pauseFactor is the pause after a pass as a multiple of its duration.
	pauseFactor = 4
	minPause    = 10 * time.Millisecond
	retryTime   = 5 * time.Second
)

// Options for New.
type Options struct {
	Sockets func() ([]bpf.Socket, error) // those that programs have connected
	Destroy func(context.Context, []sockdiag.Socket) (sockdiag.Result, error)
	Pools   func(*route.Service, *route.Port) []bpf.Pool // returns the pools of a port
	Report  func(sockdiag.Result, error)                 // called after a pass that had sockets to destroy, or failed
}

// Follower destroys sockets. It is safe for concurrent use.
type Follower struct {
	opt  Options
	wake chan struct{}

	mu      sync.Mutex
	started bool
	ports   map[bpf.Pool]*route.Port // of UDP
	due     []time.Time              // of the next passes, in order
}

// New returns a Follower without any Service.
func New(opt Options) *Follower {
	return &Follower{opt: opt, wake: make(chan struct{}, 1), ports: map[bpf.Pool]*route.Port{}}
}

// Applied queues passes if a change has removed backends or frontends. The first change, after the start, always queues passes.
func (f *Follower) Applied(change route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost := !f.started
	if !f.started && change.Table != nil { // those that the kernel refuses are not in Touched, but programs balance them
		for _, svc := range change.Table.Services {
			f.each(svc, f.add)
		}
	}
	f.started = true
	gone := map[bpf.Pool]*route.Port{}
	for _, t := range change.Touched {
		f.each(t.Old, func(id bpf.Pool, _ *route.Port) {
			if p := f.ports[id]; p != nil {
				gone[id] = p
				delete(f.ports, id)
			}
		})
	}
	for _, t := range change.Touched {
		f.each(t.New, f.add)
	}
	for id, p := range gone {
		lost = lost || f.loses(id, p)
	}
	if lost {
		f.queue()
	}
}

func (f *Follower) add(id bpf.Pool, p *route.Port) { f.ports[id] = p }

// loses reports whether sockets of a pool, that had this port before, may be stale.
func (f *Follower) loses(id bpf.Pool, before *route.Port) bool {
	now := f.ports[id]
	if now == nil {
		return true
	}
	lost := func(b netip.AddrPort) bool { return !serves(now, b) }
	same := func(a, b route.Frontend) bool { return a.Kind == b.Kind && a.Addr == b.Addr && a.Port == b.Port }
	return slices.ContainsFunc(before.Serving, lost) || !slices.EqualFunc(before.Frontends, now.Frontends, same)
}

// stale reports whether a socket has to be destroyed.
func (f *Follower) stale(s *bpf.Socket) bool {
	p := f.ports[s.Pool]
	return p == nil || !serves(p, s.Backend) || !hasFrontend(p, s.Service)
}

func serves(p *route.Port, backend netip.AddrPort) bool {
	_, there := slices.BinarySearchFunc(p.Serving, backend, netip.AddrPort.Compare)
	return there
}

// hasFrontend reports whether sockets can be connected to a port at an address. NodePorts are at any address of the node.
func hasFrontend(p *route.Port, at netip.AddrPort) bool {
	return slices.ContainsFunc(p.Frontends, func(f route.Frontend) bool {
		return f.Port == at.Port() && (f.Addr == at.Addr() || f.Kind == route.NodePort)
	})
}

// each calls a function for the pools of the UDP ports of a Service, which may be nil.
func (f *Follower) each(svc *route.Service, do func(bpf.Pool, *route.Port)) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		if p := &svc.Ports[i]; p.Protocol == cluster.UDP {
			for _, id := range f.opt.Pools(svc, p) {
				do(id, p)
			}
		}
	}
}

// queue makes a pass due now, and another one after secondPass.
func (f *Follower) queue() {
	now := time.Now()
	f.due = []time.Time{now, now.Add(secondPass)}
	select {
	case f.wake <- struct{}{}:
	default: // Run wakes anyway
	}
}

// Run makes passes until the context ends, and returns nil then.
func (f *Follower) Run(ctx context.Context) error {
	for {
		var due <-chan time.Time
		if at := f.next(); !at.IsZero() {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake: // the next pass may be an earlier one
			continue
		case <-due:
		}
		began := time.Now()
		f.begin(began)
		if f.pass(ctx) != nil {
			f.retry()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(minPause, pauseFactor*time.Since(began))):
		}
	}
}

// next returns when the next pass is due; zero: no pass is.
func (f *Follower) next() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.due) == 0 {
		return time.Time{}
	}
	return f.due[0]
}

// begin removes the passes that are due.
func (f *Follower) begin(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.due = slices.DeleteFunc(f.due, func(at time.Time) bool { return !at.After(now) })
}

// retry queues a pass after one that failed.
func (f *Follower) retry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.due = append(f.due, time.Now().Add(retryTime))
	slices.SortFunc(f.due, time.Time.Compare)
}

// pass destroys the sockets that are stale after the last applied change.
func (f *Follower) pass(ctx context.Context) error {
	all, err := f.opt.Sockets()
	if err != nil {
		f.opt.Report(sockdiag.Result{}, err)
		return err
	}
	list := f.choose(all)
	if len(list) == 0 {
		return nil
	}
	result, err := f.opt.Destroy(ctx, list)
	if ctx.Err() == nil {
		f.opt.Report(result, err)
	}
	return err
}

// choose returns the sockets that are stale.
func (f *Follower) choose(all []bpf.Socket) (list []sockdiag.Socket) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range all {
		if s := &all[i]; f.stale(s) {
			list = append(list, sockdiag.Socket{Cookie: s.Socket, NetNS: s.NetNS, Peer: s.Backend})
		}
	}
	return list
}
