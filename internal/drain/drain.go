// Package drain waits until a pod is idle: its last connection has ended, and no new connection began for a while.
// It reads conntrack, which tracks every connection to a pod of this node, through a Service or not.
//
// A wait lists the connections of its pod once, receives an event for each new connection, and polls one connection
// after the other until all have ended. If the pod has many connections, the wait follows a random sample and lists
// again when the sample has ended: three listings are enough for 100,000 connections, in whatever order they end.
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
	// Quiet is the time without a new connection after which a pod is drained: other nodes need that long to remove the
	// endpoint.
	Quiet = 2 * time.Second

	// udpSilence is the time without a packet after which a UDP flow has ended.
	udpSilence = 10 * time.Second

	// pollPeriod is the time between two polls of a wait. All waits poll at the same moment, because waking up takes most
	// of the CPU time.
	pollPeriod = 80 * time.Millisecond
)

// Table is the conntrack table of the node. conntrack.Table implements it.
type Table interface {
	Each(ctx context.Context, f conntrack.Filter, fn func(conntrack.Entry) error) error
	Get(ctx context.Context, e conntrack.Entry) (conntrack.Entry, bool, error)
	SubscribeNew(ctx context.Context, backends []netip.Addr) (func() ([]conntrack.Entry, error), error)
}

// Result is the state of a pod at the end of a wait.
type Result struct {
	Live      int    // remaining live flows
	Estimated bool   // Live is an estimate, because the wait followed only a sample
	Flows     []Flow // up to maxReported of the remaining flows

	// Drained means that no flow is live and no new flow began for Quiet.
	Drained bool
	Took    time.Duration
}

// Options for NewWaits.
type Options struct {
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
	found *flows // nil before the first listing

	newest time.Time // when the last new connection began
	lost   bool      // events were lost since the last listing
	begun  func() ([]conntrack.Entry, error)
}

// wait returns when the pod is drained or the context ends. It calls found with the number of live flows after each
// poll. It returns an error if the table cannot be read.
func (w *Waits) wait(ctx context.Context, pod []netip.Addr, found func(live int)) (r Result, err error) {
	p := &wait{Waits: w, pod: pod, newest: time.Now()}
	if p.udp, err = w.opt.Timeouts(); err != nil {
		return Result{}, fmt.Errorf("read the settings of conntrack: %w", err)
	}
	if p.node, err = w.opt.Local(ctx); err != nil {
		return Result{}, fmt.Errorf("list the addresses of this node: %w", err)
	}
	if slices.ContainsFunc(pod, func(a netip.Addr) bool { return slices.Contains(p.node, a) }) {
		return Result{}, ErrHostNetwork
	}
	detached, unsubscribe := context.WithCancel(context.WithoutCancel(ctx)) // for the last count after ctx has ended
	defer unsubscribe()
	if p.begun, err = w.opt.Table.SubscribeNew(detached, pod); err != nil {
		return Result{}, err
	}
	if err := p.list(ctx); err != nil {
		return Result{}, err
	}
	for began := p.newest; ; {
		found(p.found.live.estimate())
		r.Drained, err = p.poll(ctx)
		if err != nil {
			return Result{}, err
		}
		if !r.Drained && pause(ctx, pollPeriod-time.Since(w.lister.created)%pollPeriod) {
			continue
		}
		if _, err := p.count(detached, math.MaxInt); err != nil {
			return Result{}, err
		}
		r.Live, r.Estimated, r.Flows = p.found.live.estimate(), p.found.live.omitted > 0, p.found.report()
		r.Took = time.Since(began)
		return r, nil
	}
}

// poll reports whether the pod is drained.
func (w *wait) poll(ctx context.Context) (drained bool, err error) {
	begun, err := w.begun()
	now := time.Now()
	for _, e := range begun {
		w.found.add(e, now)
		if !w.isProbe(e) {
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
	case w.lost || w.found.incomplete(now):
		return false, w.list(ctx)
	}
	return true, nil
}

// list lists the flows to the pod. If the context ends first, it keeps the flows of the previous listing, if any.
func (w *wait) list(ctx context.Context) error {
	all, err := w.lister.list(ctx, w.pod, w.udp)
	switch {
	case err == nil:
		w.found, w.lost = all, false
	case ctx.Err() == nil:
		return err
	case w.found == nil:
		return fmt.Errorf("%w: the connections of this node were listed too often", ErrTooMany)
	}
	return nil
}

// count reads the followed flows until it has found the given number of live flows. It returns the number found.
func (w *wait) count(ctx context.Context, enough int) (n int, err error) {
	f := w.found
	rand.Shuffle(len(f.live.flows), f.live.swap) // so that one long flow does not keep all ended flows in the sample
	for _, of := range []*sample{&f.live, &f.dormant} {
		for i := len(of.flows) - 1; i >= 0 && n < enough; i-- {
			flow := of.flows[i]
			now, exists, err := w.opt.Table.Get(ctx, flow.entry)
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

// isProbe reports whether a connection may be a probe of the kubelet: this node opened it to the address of the pod.
// The kubelet sends probes until the pod is deleted.
func (w *wait) isProbe(e conntrack.Entry) bool {
	return !e.Translated() && slices.Contains(w.node, e.OrigSrc.Addr())
}

// pause waits for d. It returns false at once if the context ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err() == nil
}
