// Package drain waits until a pod is idle: until its last connection has ended, and no new one has come for a while.
// It reads conntrack, which every connection to a pod of this node passes, through a Service or not.
//
// A wait does not list the connections again and again. It chooses one of them at random and reads only that one; when
// it has ended, the wait lists what is left. So it takes about as many listings as the number of connections has binary
// digits, in whatever order they end.
package drain

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

const (
	// Quiet is how long no new connection must have come: until all nodes have removed an endpoint, new ones can.
	Quiet = 2 * time.Second

	// udpSilence is after how long without a packet a UDP flow has ended.
	udpSilence = 10 * time.Second

	lookAtWitness = 25 * time.Millisecond

	// Listings of a wait take 1 % of a CPU in the long run, and burst more at any time.
	share = 100
	burst = time.Second
)

// Table is the conntrack table of the node: conntrack.Table.
type Table interface {
	Each(ctx context.Context, f conntrack.Filter, fn func(conntrack.Entry) error) error
	Get(ctx context.Context, e conntrack.Entry) (conntrack.Entry, bool, error)
}

// Result is the state of a pod at the end of a wait.
type Result struct {
	Live  int    // flows that are left; 0: none, or the pod is drained
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

// wait returns when the pod with these addresses is drained, or with what is left when the context ends. It calls
// listed with the number of live flows after each listing. It returns an error if the table cannot be read.
func (w *Waiter) wait(ctx context.Context, pod []netip.Addr, listed func(live int)) (Result, error) {
	udp, err := w.Timeouts()
	if err != nil {
		return Result{}, fmt.Errorf("read the timeouts of UDP flows: %w", err)
	}
	node, err := w.Local(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("list the addresses of this node: %w", err)
	}
	began := time.Now()
	all := &flows{udp: udp, node: node, newest: began}
	budget := burst
	for last := began; ; {
		at := time.Now()
		budget, last = min(budget+at.Sub(last)/share, burst), at
		due := budget > 0 || ctx.Err() != nil
		if due {
			if err := w.look(context.WithoutCancel(ctx), all, pod); err != nil {
				return Result{}, err
			}
			listed(all.live)
			budget -= time.Since(at)
		}
		quiet := Quiet - time.Since(all.newest)
		drained := due && all.live == 0 && quiet <= 0
		switch {
		case drained || ctx.Err() != nil:
			return Result{all.live, all.first, drained, time.Since(began)}, nil
		case all.live == 0:
			pause(ctx, max(quiet, lookAtWitness))
		default:
			if err := w.witness(ctx, all); err != nil {
				return Result{}, err
			}
		}
	}
}

// look lists the flows to a pod.
func (w *Waiter) look(ctx context.Context, all *flows, pod []netip.Addr) error {
	l := all.list(time.Now())
	for _, addr := range pod {
		f := conntrack.Filter{Family: conntrack.IPv4, ReplySrc: netip.AddrPortFrom(addr, 0)}
		if addr.Is6() {
			f.Family = conntrack.IPv6
		}
		err := w.Table.Each(ctx, f, func(e conntrack.Entry) error {
			l.add(e)
			return nil
		})
		if err != nil {
			return err
		}
	}
	l.end()
	return nil
}

// witness returns when the witness of the last listing has ended, or the context.
func (w *Waiter) witness(ctx context.Context, all *flows) error {
	for pause(ctx, lookAtWitness) {
		now, exists, err := w.Table.Get(context.WithoutCancel(ctx), all.witness)
		if err != nil || !exists || !all.isLive(now) {
			return err
		}
	}
	return nil
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
