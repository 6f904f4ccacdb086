// Package sockets destroys sockets that programs have connected to a backend in place of a Service, when that backend is
// gone. They have no NAT entry in conntrack that could be deleted: their packets were never translated.
//
// A UDP socket would keep sending to the lost backend, so it is destroyed when the backend no longer serves, as conntrack entries
// are deleted then. A TCP connection goes on until its endpoint is removed.
package sockets

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/kernel/sockdiag"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// secondPass is the time from a change to the pass for TCP, and to the second pass for UDP. An endpoint that moves between
	// EndpointSlices may be in none for a moment, and a UDP socket may have chosen the backend just before the change.
	secondPass = 2 * time.Second

	// pauseFactor is the pause after a pass as a multiple of its duration.
	pauseFactor = 4
	minPause    = 10 * time.Millisecond
	retry       = 5 * time.Second
)

// Options for New.
type Options struct {
	Sockets func(protocol uint8) ([]bpf.Socket, error) // those that programs have connected
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
	ports   map[bpf.Pool]*route.Port
	due     map[uint8]time.Time // the next pass, by protocol
	again   map[uint8]time.Time // the pass after the next one, by protocol

	// since is when endpoints of TCP were removed, in the last secondPass. They may come back.
	since map[bpf.Member]time.Time
}

// New returns a Follower without any Service.
func New(opt Options) *Follower {
	return &Follower{opt: opt, wake: make(chan struct{}, 1), ports: map[bpf.Pool]*route.Port{}, due: map[uint8]time.Time{}, again: map[uint8]time.Time{}, since: map[bpf.Member]time.Time{}}
}

// Applied queues passes if a change has removed backends. The first change, after the start, always queues passes.
func (f *Follower) Applied(change route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost := map[cluster.Protocol]bool{cluster.TCP: !f.started, cluster.UDP: !f.started}
	if !f.started && change.Table != nil { // those that the kernel refuses are not in Touched, but programs balance them
		for _, svc := range change.Table.Services {
			f.each(svc, f.add)
		}
	}
	f.started = true
	var gone []old
	for _, t := range change.Touched {
		f.each(t.Old, func(id bpf.Pool, _ *route.Port) {
			if p := f.ports[id]; p != nil {
				gone = append(gone, old{id, p})
				delete(f.ports, id)
			}
		})
	}
	for _, t := range change.Touched {
		f.each(t.New, f.add)
	}
	now := time.Now()
	for _, o := range gone {
		lost[o.port.Protocol] = f.lost(o, now) || lost[o.port.Protocol]
	}
	if lost[cluster.UDP] {
		f.queue(uint8(cluster.UDP), now)
		f.again[uint8(cluster.UDP)] = now.Add(secondPass)
	}
	if lost[cluster.TCP] {
		f.queue(uint8(cluster.TCP), now.Add(secondPass))
	}
}

// old is a pool of a port before a change.
type old struct {
	pool bpf.Pool
	port *route.Port
}

// add adds a pool, whose backends may have been removed before.
func (f *Follower) add(id bpf.Pool, p *route.Port) {
	f.ports[id] = p
	if len(f.since) == 0 || p.Protocol != cluster.TCP {
		return
	}
	for _, b := range keptBackends(p) {
		delete(f.since, bpf.Member{Pool: id, Backend: b})
	}
}

// lost reports whether a socket of the pool may have to be destroyed, and records since when.
func (f *Follower) lost(o old, now time.Time) (some bool) {
	for _, b := range keptBackends(o.port) {
		if !f.stale(o.pool, uint8(o.port.Protocol), b) {
			continue
		}
		some = true
		if o.port.Protocol == cluster.TCP {
			f.since[bpf.Member{Pool: o.pool, Backend: b}] = now
		}
	}
	return some
}

// keptBackends returns the backends whose sockets stay.
func keptBackends(p *route.Port) []netip.AddrPort {
	if p.Protocol == cluster.UDP {
		return p.Serving
	}
	return p.Present
}

// stale reports whether sockets of a pool that are connected to a backend have to be destroyed. A TCP connection outlives the
// Service.
func (f *Follower) stale(id bpf.Pool, protocol uint8, backend netip.AddrPort) bool {
	p := f.ports[id]
	if p == nil {
		return protocol == uint8(cluster.UDP)
	}
	list := keptBackends(p)
	if list == nil && p.Protocol == cluster.TCP {
		return false // route.Options.ListEndpoints is off
	}
	_, there := slices.BinarySearchFunc(list, backend, netip.AddrPort.Compare)
	return !there
}

func (f *Follower) each(svc *route.Service, do func(bpf.Pool, *route.Port)) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		for _, id := range f.opt.Pools(svc, &svc.Ports[i]) {
			do(id, &svc.Ports[i])
		}
	}
}

// queue makes a pass due at a time. If an earlier pass is due, it is followed by this one.
func (f *Follower) queue(protocol uint8, at time.Time) {
	if is := f.due[protocol]; !is.IsZero() && is.Before(at) {
		at, f.again[protocol] = is, at
	}
	f.due[protocol] = at
	select {
	case f.wake <- struct{}{}:
	default: // Run wakes anyway
	}
}

// Run makes passes until the context ends, and returns nil then.
func (f *Follower) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		protocols, wait := f.take(time.Now())
		if len(protocols) == 0 {
			f.idle(ctx, wait)
			continue
		}
		began := time.Now()
		pause := minPause
		if err := f.pass(ctx, protocols); err != nil {
			f.requeue(protocols)
			pause = retry
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(pause, pauseFactor*time.Since(began))):
		}
	}
	return nil
}

// take returns the protocols whose pass is due, and the time until the next pass; 0 if none is queued.
func (f *Follower) take(now time.Time) (protocols []uint8, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range []uint8{uint8(cluster.UDP), uint8(cluster.TCP)} {
		at := f.due[p]
		if !at.IsZero() && !at.After(now) {
			protocols = append(protocols, p)
			f.due[p] = f.again[p]
			delete(f.again, p)
			at = f.due[p]
		}
		if left := at.Sub(now); !at.IsZero() && (wait == 0 || left < wait) {
			wait = max(left, time.Millisecond)
		}
	}
	return protocols, wait
}

func (f *Follower) requeue(protocols []uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range protocols {
		f.queue(p, time.Now())
	}
}

// idle waits for a change, or for the next pass.
func (f *Follower) idle(ctx context.Context, wait time.Duration) {
	var due <-chan time.Time
	if wait > 0 {
		due = time.After(wait)
	}
	select {
	case <-ctx.Done():
	case <-f.wake:
	case <-due:
	}
}

// pass destroys the sockets that are stale after the last applied change.
func (f *Follower) pass(ctx context.Context, protocols []uint8) error {
	var list []sockdiag.Socket
	for _, p := range protocols {
		all, err := f.opt.Sockets(p)
		if err != nil {
			f.opt.Report(sockdiag.Result{}, err)
			return err
		}
		list = append(list, f.choose(p, all)...)
	}
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
func (f *Follower) choose(protocol uint8, all []bpf.Socket) (list []sockdiag.Socket) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.since, func(_ bpf.Member, at time.Time) bool { return time.Since(at) >= secondPass })
	for _, s := range all {
		_, recently := f.since[bpf.Member{Pool: s.Pool, Backend: s.Backend}]
		if f.stale(s.Pool, protocol, s.Backend) && !recently {
			list = append(list, sockdiag.Socket{Cookie: s.Socket, NetNS: s.NetNS, Protocol: protocol, Peer: s.Backend})
		}
	}
	return list
}
