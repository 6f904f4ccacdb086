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

	"github.com/sluice-proxy/sluice/test/bench/filled"
	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	perSlice = 100 // endpoints, the default of the EndpointSlice controller
	perBatch = 25  // endpoints of a slice that one write replaces
)

// rollingIP returns endpoint j of the old (0) or new (1) generation of pods. All are addresses of the first pod.
func rollingIP(generation, j int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 181 + byte(generation), byte(j >> 8), byte(j)})
}

// generationOf is the reverse of rollingIP.
func generationOf(a netip.Addr) int { return int(a.As4()[1]) - 181 }

// batch is one write of a rolling update, with all endpoints of a slice.
type batch struct {
	slice int
	addrs []netip.Addr
}

// batches returns the writes of a rolling update of n endpoints, slice by slice.
func batches(n int) []batch {
	var out []batch
	for slice := range n / perSlice {
		for end := perBatch; end <= perSlice; end += perBatch {
			out = append(out, batch{slice, mixed(slice, end)})
		}
	}
	return out
}

// mixed returns the endpoints of a slice whose first ones are new.
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

// rolling replaces all endpoints of a large Service while clients make new connections to it.
func (n *node) rolling(r *result) error {
	if err := n.prepareRolling(); err != nil {
		return err
	}
	n.quiet()
	if err := n.verbosity("4"); err != nil {
		return err
	}
	known := len(syncTimes(n.proxy.Log.String()))
	var cpu time.Duration
	syncs, err := n.observed("kubeproxy_sync_proxy_rules_duration_seconds", func() (err error) {
		cpu, err = n.spent(func() error { return n.roll(r) })
		return err
	})
	if err != nil {
		return err
	}
	r.duration("rolling.sync", atLeast(syncs))
	r.count("rolling.endpoints", n.amounts.rolling)
	r.duration("rolling.cpu", cpu)
	if isSluice(n.kind.name) {
		r.spread("rolling.step", syncTimes(n.proxy.Log.String())[known:])
	}
	return n.verbosity("2")
}

// prepareRolling gives the first pod all addresses of both generations and
// makes the old ones the endpoints of the Service.
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
	for slice := range n.amounts.rolling / perSlice {
		if err := n.set(ctx, rollingService, slice, mixed(slice, 0)...); err != nil {
			return err
		}
	}
	return n.replaced(0)
}

// createRolling creates the Service, unless the previous measurement did.
func (n *node) createRolling(ctx context.Context) error {
	_, err := n.API.CoreV1().Services(filled.Namespace).Get(ctx, filled.ServiceName(rollingService), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, err := n.API.CoreV1().Services(filled.Namespace).Create(ctx, filled.Service(rollingService),
		metav1.CreateOptions{}); err != nil {
		return err
	}
	for slice := range n.amounts.rolling / perSlice {
		es := filled.Slice(rollingService, slice, mixed(slice, 0)...)
		if _, err := n.API.DiscoveryV1().EndpointSlices(filled.Namespace).Create(ctx, es,
			metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// connectionsInARow consecutive connections to new endpoints show that probably no old one is left:
// with one old endpoint of 100 the probability is 1 in 20,000.
const connectionsInARow = 1000

// replaced waits until connectionsInARow connections have reached endpoints of one generation.
func (n *node) replaced(generation int) error {
	row := 0
	return n.proxy.Until(n.limit, "connections to the large Service", func() error {
		for ; row < connectionsInARow; row++ {
			got, err := n.connectOnce(rollingService)
			if err == nil && generationOf(got) != generation {
				err = fmt.Errorf("%s answered", got)
			}
			if err != nil {
				row = 0
				return err
			}
			time.Sleep(300 * time.Microsecond)
		}
		return nil
	})
}

// roll makes the writes while a client connects continuously.
func (n *node) roll(r *result) error {
	p := &prober{node: n}
	ctx, cancel := context.WithCancel(context.Background())
	var probing sync.WaitGroup
	probing.Go(func() { p.run(ctx) })
	stop := func() {
		cancel()
		probing.Wait()
	}
	defer stop()
	began := time.Now()
	tick := time.NewTicker(time.Second / time.Duration(n.rollingRate))
	defer tick.Stop()
	all := batches(n.amounts.rolling)
	for _, b := range all {
		<-tick.C
		if err := n.set(ctx, rollingService, b.slice, b.addrs...); err != nil {
			return err
		}
	}
	writing := time.Since(began)
	if err := n.replaced(1); err != nil {
		return err
	}
	stop()
	r.duration("rolling.total", max(p.old.Sub(began), writing))
	r.duration("rolling.writing", writing)
	r.count("rolling.writes", len(all))
	r.spread("rolling.connect", p.took)
	r.count("rolling.failed", p.failed)
	return nil
}

// prober makes connections to the large Service.
type prober struct {
	*node
	took   []time.Duration
	failed int
	old    time.Time // of the last answer of an old endpoint
}

func (p *prober) run(ctx context.Context) {
	// The timeout is longer than the first retransmission timeout of TCP.
	probe := lab.Probe{Protocol: lab.TCP, To: filled.Target(rollingService), Timeout: 5 * time.Second}
	for ctx.Err() == nil {
		r := p.client.Try(probe)
		p.took = append(p.took, r.Took)
		if r.Outcome != lab.Answered {
			p.failed++
		} else if generationOf(r.Backend.Addr()) == 0 {
			p.old = time.Now()
		}
		time.Sleep(time.Millisecond)
	}
}
