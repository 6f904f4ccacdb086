// Package drain waits until a pod is idle: until its last connection has ended, and no new one has come for a while.
// It reads conntrack, which every connection to a pod of this node passes, through a Service or not.
//
// A wait lists the connections of its pod once, receives an event for each new one, and reads one connection after the
// other until all have ended. Of many connections it follows a random part, and lists the others when that part has
// ended: three listings are enough for 100,000 connections, in whatever order they end.
package drain

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

const (
	// Quiet is how long no new connection must have come: until all nodes have removed an endpoint, new ones can.
	Quiet = 2 * time.Second

	// udpSilence is after how long without a packet a UDP flow has ended.
	udpSilence = 10 * time.Second

	// lookEvery is the time between two looks at a connection. All waits look at the same moment, as most of the CPU time
	// is for waking up.
	lookEvery = 80 * time.Millisecond
)

// Table is the conntrack table of the node: conntrack.Table.
type Table interface {
	Each(ctx context.Context, f conntrack.Filter, fn func(conntrack.Entry) error) error
	Get(ctx context.Context, e conntrack.Entry) (conntrack.Entry, bool, error)
	Begun(ctx context.Context, backends []netip.Addr) (func() ([]conntrack.Entry, error), error)
}

// Result is the state of a pod at the end of a wait.
type Result struct {
	Live  int    // flows that are left; 0: none, or the pod is drained
	About bool   // Live is an estimate: more were found than are followed
	Flows []Flow // the first of them

	// Drained means that no flow is live and no new one came for a while.
	Drained bool
	Took    time.Duration
}

// Waiter waits for pods of this node.
type Waiter struct {
	Table    Table
	Timeouts func() (Timeouts, error)
	Local    func(context.Context) ([]netip.Addr, error) // addresses of this node
}

// wait is a wait for the pod with these addresses.
type wait struct {
	*Waits
	pod   []netip.Addr
	node  []netip.Addr // addresses of this node
	udp   Timeouts
	found *flows // nil: they were not listed yet

	newest time.Time // when the last new connection came
	lost   bool      // some were missed
	begun  func() ([]conntrack.Entry, error)
}

// wait returns when the pod is drained, or with what is left when the context ends. It calls found with the number of
// live flows, as far as it is known. It returns an error if the table cannot be read.
func (w *Waits) wait(ctx context.Context, pod []netip.Addr, found func(live int)) (r Result, err error) {
	p := &wait{Waits: w, pod: pod, newest: time.Now()}
	if p.udp, err = w.waiter.Timeouts(); err != nil {
		return Result{}, fmt.Errorf("read the settings of conntrack: %w", err)
	}
	if p.node, err = w.waiter.Local(ctx); err != nil {
		return Result{}, fmt.Errorf("list the addresses of this node: %w", err)
	}
	if slices.ContainsFunc(pod, func(a netip.Addr) bool { return slices.Contains(p.node, a) }) {
		return Result{}, ErrNode
	}
	patient, unsubscribe := context.WithCancel(context.WithoutCancel(ctx))
	defer unsubscribe()
	if p.begun, err = w.waiter.Table.Begun(patient, pod); err != nil {
		return Result{}, err
	}
	if err := p.list(ctx); err != nil {
		return Result{}, err
	}
	for began := p.newest; ; {
		found(p.found.live.number())
		r.Drained, err = p.look(ctx)
		if err != nil {
			return Result{}, err
		}
		if !r.Drained && pause(ctx, lookEvery-time.Since(w.lists.began)%lookEvery) {
			continue
		}
		if _, err := p.count(patient, math.MaxInt); err != nil {
			return Result{}, err
		}
		r.Live, r.About, r.Flows = p.found.live.number(), p.found.live.more > 0, p.found.named()
		r.Took = time.Since(began)
		return r, nil
	}
}

// look reports whether the pod is drained.
func (w *wait) look(ctx context.Context) (drained bool, err error) {
	begun, err := w.begun()
	now := time.Now()
	for _, e := range begun {
		w.found.add(e, now)
		if !w.probes(e) {
			w.newest = now
		}
	}
	switch {
	case errors.Is(err, conntrack.ErrLost):
		w.lost, w.newest = true, now
		return false, nil
	case err != nil || now.Sub(w.newest) < Quiet:
		return false, err
	}
	live, err := w.count(context.WithoutCancel(ctx), 1)
	switch {
	case live > 0 || err != nil:
		return false, err
	case w.lost || w.found.partial(now):
		return false, w.list(ctx)
	}
	return true, nil
}

// list lists the flows to the pod. If the context ends before, it keeps what it knows.
func (w *wait) list(ctx context.Context) error {
	all, err := w.lists.list(ctx, w.pod, w.udp)
	switch {
	case err == nil:
		w.found, w.lost = all, false
	case ctx.Err() == nil:
		return err
	case w.found == nil:
		return fmt.Errorf("%w: the connections of this node were listed too often", ErrMany)
	}
	return nil
}

// count reads followed flows until it has found so many live ones. It returns how many it has found.
func (w *wait) count(ctx context.Context, enough int) (n int, err error) {
	f := w.found
	rand.Shuffle(len(f.live.flows), f.live.swap) // otherwise a long one would hide that all others have ended
	for _, of := range []*sample{&f.live, &f.dormant} {
		for i := len(of.flows) - 1; i >= 0 && n < enough; i-- {
			flow := of.flows[i]
			now, exists, err := w.waiter.Table.Get(ctx, flow.entry)
			if err != nil {
				return n, err
			}
			of.flows = slices.Delete(of.flows, i, i+1)
			if flow.entry = now; exists && f.keep(flow) {
				n++
			}
		}
	}
	return n, nil
}

// probes reports whether a connection may be a probe of the kubelet, which goes on until the pod is gone: it is made by
// this node, to the pod itself.
func (w *wait) probes(e conntrack.Entry) bool {
	return !e.Translated() && slices.Contains(w.node, e.OrigSrc.Addr())
}

// pause returns after a time, or with false when the context ends.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
