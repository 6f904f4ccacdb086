//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	perSlice = 100 // endpoints, as the control plane does
	perBatch = 25  // of a slice, replaced by one write
)

// rollingIP is endpoint j of the old (0) or new (1) pods. All are addresses of
// the first pod.
func rollingIP(generation, j int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 181 + byte(generation), byte(j >> 8), byte(j)})
}

// batch is one write of a rolling update: what a slice then has.
type batch struct {
	slice int
	addrs []netip.Addr
}

// batches are the writes of a rolling update of n endpoints, slice after slice.
// In each some pods are replaced, as many as a write of the control plane has.
func batches(n int) []batch {
	var out []batch
	for slice := range n / perSlice {
		for end := perBatch; end <= perSlice; end += perBatch {
			out = append(out, batch{slice, mixed(slice, end)})
		}
	}
	return out
}

// mixed are the endpoints of a slice of which the first are new.
func mixed(slice, fresh int) []netip.Addr {
	var out []netip.Addr
	for j := range perSlice {
		generation := 0
		if j < fresh {
			generation = 1
		}
		out = append(out, rollingIP(generation, slice*perSlice+j))
	}
	return out
}

// rolling replaces all endpoints of a large Service while new connections are
// made to it.
func (n *node) rolling(r *result) error {
	if err := n.prepareRolling(); err != nil {
		return err
	}
	n.quiet()
	if err := n.proxy.verbosity("4"); err != nil {
		return err
	}
	before, err := n.proxy.metrics()
	if err != nil {
		return err
	}
	known := len(syncTimes(n.proxy.log.String()))
	out := &rolled{Endpoints: n.o.rolling, Writes: len(batches(n.o.rolling))}
	if out.CPU, err = n.spent(func() error { return n.roll(out) }); err != nil {
		return err
	}
	after, err := n.proxy.metrics()
	if err != nil {
		return err
	}
	const name = "kubeproxy_sync_proxy_rules_duration_seconds"
	out.Sync = atLeast(since(before.histogram(name), after.histogram(name)))
	if n.kind.ours() {
		out.Step = spreadOf(syncTimes(n.proxy.log.String())[known:])
	}
	r.Rolling = out
	return n.proxy.verbosity("2")
}

// prepareRolling gives the first pod all addresses, and has the Service begin
// with the old ones.
func (n *node) prepareRolling() error {
	pod := n.pods[0].Addr4().String()
	for generation := range 2 {
		all := netip.PrefixFrom(rollingIP(generation, 0), 16).String()
		if _, err := n.pods[0].Run("", "ip", "route", "replace", "local", all, "dev", "lo"); err != nil {
			return err
		}
		if _, err := n.host.Run("", "ip", "route", "replace", all, "via", pod); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := n.createRolling(ctx); err != nil {
		return err
	}
	for slice := range n.o.rolling / perSlice {
		if err := n.set(ctx, rollingService, slice, mixed(slice, 0)...); err != nil {
			return err
		}
	}
	return n.replaced(0)
}

// createRolling makes the Service, unless it is there from the proxy before.
func (n *node) createRolling(ctx context.Context) error {
	api := n.server.client
	_, err := api.CoreV1().Services(namespace).Get(ctx, serviceName(rollingService), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, err := api.CoreV1().Services(namespace).Create(ctx, serviceObject(rollingService), metav1.CreateOptions{}); err != nil {
		return err
	}
	for slice := range n.o.rolling / perSlice {
		es := sliceObject(rollingService, slice, mixed(slice, 0)...)
		if _, err := api.DiscoveryV1().EndpointSlices(namespace).Create(ctx, es, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// replaced waits until connections have long ended on one generation alone.
func (n *node) replaced(generation int) error {
	row := 0
	return n.proxy.wait(n.o.limit, "connections to the large Service", func() error {
		row++
		got, err := n.reaches(rollingService)
		if err == nil && got.As4()[1] != 181+byte(generation) {
			err = fmt.Errorf("%s answered", got)
		}
		if err != nil {
			row = 0
			return err
		}
		if row < inARow {
			return fmt.Errorf("%d connections in a row ended well, want %d", row, inARow)
		}
		return nil
	})
}

// inARow connections that end on new endpoints show that hardly an old one is
// left: with one of 100 still there the chance is 1 in 20,000.
const inARow = 1000

// roll makes the writes, and connects all the time.
func (n *node) roll(out *rolled) error {
	p := &prober{node: n}
	ctx, stop := context.WithCancel(context.Background())
	var probing sync.WaitGroup
	probing.Go(func() { p.run(ctx) })
	end := func() {
		stop()
		probing.Wait()
	}
	defer end()
	began := time.Now()
	tick := time.NewTicker(time.Second / time.Duration(n.o.rollingRate))
	defer tick.Stop()
	for _, b := range batches(n.o.rolling) {
		<-tick.C
		if err := n.set(ctx, rollingService, b.slice, b.addrs...); err != nil {
			return err
		}
	}
	out.Writing = time.Since(began)
	if err := n.replaced(1); err != nil {
		return err
	}
	end()
	out.Total = max(p.old.Sub(began), out.Writing)
	out.Connect, out.Failed = spreadOf(p.took), p.failed
	return nil
}

// prober makes new connections to the large Service.
type prober struct {
	*node
	took   []time.Duration
	failed int
	old    time.Time // when an old endpoint answered last
}

func (p *prober) run(ctx context.Context) {
	// Longer than it takes to send the first packet of a connection again.
	probe := lab.Probe{Protocol: lab.TCP, To: target(rollingService), Timeout: 5 * time.Second}
	for ctx.Err() == nil {
		r := p.client.Try(probe)
		p.took = append(p.took, r.Took)
		if r.Outcome != lab.Answered {
			p.failed++
		} else if r.Backend.Addr().As4()[1] == 181 {
			p.old = time.Now()
		}
		time.Sleep(time.Millisecond)
	}
}
