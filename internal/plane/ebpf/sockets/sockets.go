// Package sockets destroys UDP sockets that programs have connected to a backend in place of a Service, when that
// backend no longer serves, or the Service has lost the address or port to which the socket was connected. They have
// no NAT entry in conntrack that could be deleted: their packets were never translated.
package sockets

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/work"
)

// secondPass is the time from a change to the second pass: a socket may have chosen the backend just before the change.
const secondPass = 2 * time.Second

// Options for New.
type Options struct {
	Sockets func() ([]bpf.Socket, error) // those that programs have connected
	Destroy func(context.Context, []sockdiag.Socket) (sockdiag.Result, error)
	Pools   func(*route.Service) map[bpf.Pool]*route.Port // returns the UDP port of each pool; none of a nil Service
	Report  func(sockdiag.Result)                         // called after a pass that had sockets to destroy
	Failed  func(error)                                   // called when passes begin to fail; they are repeated
}

// Follower destroys sockets. It is safe for concurrent use.
type Follower struct {
	*work.Loop

	opt Options

	mu      sync.Mutex
	started bool
	ports   map[bpf.Pool]*route.Port // of UDP
	until   time.Time                // passes are made until the first that begins then or later; zero: none is due
}

// New returns a Follower without any Service.
func New(opt Options) *Follower {
	f := &Follower{opt: opt, ports: map[bpf.Pool]*route.Port{}}
	f.Loop = work.New(f.passDue, opt.Failed)
	return f
}

// Applied queues passes if a change touches a Service that has had UDP sockets. The first change, after the start,
// always queues passes.
func (f *Follower) Applied(change route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	due := !f.started
	if !f.started && change.Table != nil { // those that the kernel refuses are not in Touched, but programs balance them
		for _, svc := range change.Table.Services {
			maps.Copy(f.ports, f.opt.Pools(svc))
		}
	}
	f.started = true
	for _, t := range change.Touched {
		for id := range f.opt.Pools(t.Old) {
			delete(f.ports, id)
			due = true
		}
		maps.Copy(f.ports, f.opt.Pools(t.New))
	}
	if due {
		f.until = time.Now().Add(secondPass)
		f.Wake()
	}
}

// stale reports whether a socket has to be destroyed. The caller holds mu.
func (f *Follower) stale(s *bpf.Socket) bool {
	p := f.ports[s.Pool]
	if p == nil || !hasFrontend(p, s.Service) {
		return true
	}
	_, serves := slices.BinarySearchFunc(p.Serving, s.Backend, netip.AddrPort.Compare)
	return !serves
}

// hasFrontend reports whether sockets can be connected to a port at an address. NodePorts are at any address of the
// node.
func hasFrontend(p *route.Port, at netip.AddrPort) bool {
	return slices.ContainsFunc(p.Frontends, func(f route.Frontend) bool {
		return f.Port == at.Port() && (f.Addr == at.Addr() || f.Kind == route.NodePort)
	})
}

// passDue makes a pass if one is due, and returns the time until the second one.
func (f *Follower) passDue(ctx context.Context) (time.Duration, error) {
	f.mu.Lock()
	until := f.until
	f.mu.Unlock()
	if until.IsZero() {
		return 0, nil
	}
	began := time.Now()
	if err := f.pass(ctx); err != nil {
		return 0, err
	}
	if began.Before(until) {
		return max(time.Until(until), 1), nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.until.Equal(until) {
		f.until = time.Time{}
	}
	return 0, nil
}

// pass destroys the sockets that are stale after the last applied change.
func (f *Follower) pass(ctx context.Context) error {
	all, err := f.opt.Sockets()
	if err != nil {
		return err
	}
	var list []sockdiag.Socket
	f.mu.Lock()
	for i := range all {
		if s := &all[i]; f.stale(s) {
			list = append(list, sockdiag.Socket{Cookie: s.Socket, NetNS: s.NetNS, Peer: s.Backend})
		}
	}
	f.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	result, err := f.opt.Destroy(ctx, list)
	f.opt.Report(result)
	return err
}
