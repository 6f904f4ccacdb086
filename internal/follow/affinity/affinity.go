// Package affinity lets programs of sockets repeat what the packet plane has chosen for a client with session affinity, so that
// both send it to the same backend.
//
// The packet plane serves the connection of a client without a lease, and the program requests one. Then the packet plane remembers the client, and the
// Follower grants a lease, for a small part of the timeout. When it has expired, the packet plane serves the next connection, which renews
// what it remembers. A client that pauses for less than the timeout and that part keeps its backend.
package affinity

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// A lease ends after the timeout divided by timeoutParts, but at most maxLease, since the packet plane has seen the client.
	timeoutParts = 20
	maxLease     = time.Minute

	// answerDelay is the time from a request to its answer: the packet plane has to have the first packet.
	answerDelay = 20 * time.Millisecond

	// maxWaiting is how many requests wait for an answer; further ones are lost, and made again with the next connection.
	maxWaiting = 1000

	// pauseFactor is the pause after answers as a multiple of the time that they have taken.
	pauseFactor = 4

	sweepPeriod = time.Minute // between removals of expired leases
	retryPause  = 5 * time.Second
)

// Leases are the leases of programs (bpf.Conn).
type Leases interface {
	Requests(ctx context.Context, do func(bpf.Request)) error
	Lease(l bpf.LeaseKey, backend netip.AddrPort, length time.Duration) error
	EndLeases(list []bpf.LeaseKey) error
	Leases() ([]bpf.LeaseKey, error)
}

// Options for New.
type Options struct {
	Leases     Leases
	Port       func(*route.Service, *route.Port) bpf.Pool                                  // by which requests name a port
	Remembered func(f route.Key, client netip.Addr) (netip.AddrPort, time.Duration, error) // of the packet plane (plane.Opened)
	Source     func(to netip.Addr) (netip.Addr, error)                                     // of connections of the node
	Failed     func(error)                                                                 // called with errors; what failed is tried again with the next request
}

// Follower grants leases. It is safe for concurrent use.
type Follower struct {
	opt  Options
	wake chan struct{}

	mu      sync.Mutex
	started bool
	ports   map[bpf.Pool]*route.Port              // with affinity
	granted map[bpf.Pool]map[netip.Addr]time.Time // when leases end
	ended   []bpf.LeaseKey                        // to be ended
	waiting map[bpf.LeaseKey]bpf.Request
}

// New returns a Follower without any Service.
func New(opt Options) *Follower {
	return &Follower{
		opt: opt, wake: make(chan struct{}, 1), ports: map[bpf.Pool]*route.Port{},
		granted: map[bpf.Pool]map[netip.Addr]time.Time{}, waiting: map[bpf.LeaseKey]bpf.Request{},
	}
}

// Applied ends the leases of all Services that a change touches, before the next change can follow: a backend that goes and comes back
// may not have its clients then, as the packet plane has forgotten them.
func (f *Follower) Applied(change route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range change.Touched {
		f.each(t.Old, func(id bpf.Pool, _ *route.Port) {
			delete(f.ports, id)
			for client := range f.granted[id] {
				f.ended = append(f.ended, bpf.LeaseKey{Port: id, Client: client})
			}
			delete(f.granted, id)
		})
	}
	for _, t := range change.Touched {
		f.each(t.New, func(id bpf.Pool, p *route.Port) { f.ports[id] = p })
	}
	if err := f.end(); err != nil {
		f.opt.Failed(err)
		f.signal()
	}
	if !f.started {
		f.started = true
		f.signal()
	}
}

// end ends leases. Those that remain after an error are for the next pass.
func (f *Follower) end() error {
	if len(f.ended) == 0 {
		return nil
	}
	if err := f.opt.Leases.EndLeases(f.ended); err != nil {
		return err
	}
	f.ended = nil
	return nil
}

func (f *Follower) each(svc *route.Service, do func(bpf.Pool, *route.Port)) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		if p := &svc.Ports[i]; p.Affinity > 0 {
			do(f.opt.Port(svc, p), p)
		}
	}
}

func (f *Follower) signal() {
	select {
	case f.wake <- struct{}{}:
	default: // Run wakes anyway
	}
}

// Run grants and ends leases until the context ends, and returns nil then. Leases of an earlier run end first.
func (f *Follower) Run(ctx context.Context) error {
	select { // nothing is there before the first write
	case <-ctx.Done():
		return nil
	case <-f.wake:
	}
	earlier, err := f.opt.Leases.Leases()
	if err = errors.Join(err, f.opt.Leases.EndLeases(earlier)); err != nil {
		f.opt.Failed(err)
	}
	var done sync.WaitGroup
	defer done.Wait()
	done.Go(func() { f.readRequests(ctx) })
	sweep := time.NewTicker(sweepPeriod)
	defer sweep.Stop()
	for f.pause(ctx, sweep.C) {
		began, pause := time.Now(), time.Duration(0)
		if err := f.pass(); err != nil {
			f.opt.Failed(err)
			pause = retryPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(pause, pauseFactor*time.Since(began))):
		}
	}
	return nil
}

// readRequests reads requests until the end of the context, also after errors.
func (f *Follower) readRequests(ctx context.Context) {
	for ctx.Err() == nil {
		if err := f.opt.Leases.Requests(ctx, f.request); err != nil {
			f.opt.Failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// pause waits until there is something to do, and for the packets of the first request. It returns false at the end of the context.
func (f *Follower) pause(ctx context.Context, sweep <-chan time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case now := <-sweep:
		f.sweep(now)
	case <-f.wake:
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(answerDelay):
		return true
	}
}

// request queues a request.
func (f *Follower) request(r bpf.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting) < maxWaiting {
		f.waiting[r.LeaseKey] = r
		f.signal()
	}
}

// sweep queues the removal of leases that are over.
func (f *Follower) sweep(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, clients := range f.granted {
		for client, end := range clients {
			if end.Before(now) {
				f.ended = append(f.ended, bpf.LeaseKey{Port: id, Client: client})
				delete(clients, client)
			}
		}
		if len(clients) == 0 {
			delete(f.granted, id)
		}
	}
}

// pass ends leases, and answers requests.
func (f *Follower) pass() error {
	waiting, err := f.take()
	if err != nil {
		return err
	}
	for _, r := range waiting {
		if err := f.answer(r); err != nil {
			return err
		}
	}
	return nil
}

// take ends leases, and returns the requests.
func (f *Follower) take() ([]bpf.Request, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.end(); err != nil {
		f.signal()
		return nil, err
	}
	waiting := slices.Collect(maps.Values(f.waiting))
	clear(f.waiting)
	return waiting, nil
}

// answer grants a lease if the packet plane remembers the client.
func (f *Follower) answer(r bpf.Request) error {
	port, key := f.frontend(r)
	if port == nil {
		return nil
	}
	client := r.Client
	if r.Clients == bpf.OfNode {
		source, err := f.opt.Source(r.Frontend.Addr())
		if err != nil || !source.IsValid() {
			return err
		}
		client = source
	}
	backend, left, err := f.opt.Remembered(key, client)
	if err != nil {
		return err
	}
	length := min(port.Affinity/timeoutParts, maxLease) - (port.Affinity - left) // since the packet plane has seen it
	if left == 0 || length <= 0 {
		return nil
	}
	return f.grant(r.LeaseKey, port, backend, length)
}

// frontend returns the port of a request, and the key of the frontend that was asked for; nil: there is none with affinity.
func (f *Follower) frontend(r bpf.Request) (*route.Port, route.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.ports[r.Port]
	if p == nil {
		return nil, route.Key{}
	}
	key := route.Key{Family: p.Family, Protocol: p.Protocol, Port: r.Frontend.Port()} // of a NodePort
	for i := range p.Frontends {
		if p.Frontends[i].Addr == r.Frontend.Addr() && p.Frontends[i].Port == key.Port {
			key.Addr = r.Frontend.Addr()
		}
	}
	return p, key
}

// grant grants a lease, unless the port has changed meanwhile.
func (f *Follower) grant(l bpf.LeaseKey, port *route.Port, backend netip.AddrPort, length time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ports[l.Port] != port {
		return nil
	}
	err := f.opt.Leases.Lease(l, backend, length)
	if errors.Is(err, bpf.ErrFull) {
		return nil // until others are over
	}
	if err != nil {
		return err
	}
	clients := f.granted[l.Port]
	if clients == nil {
		clients = map[netip.Addr]time.Time{}
		f.granted[l.Port] = clients
	}
	clients[l.Client] = time.Now().Add(length)
	return nil
}
