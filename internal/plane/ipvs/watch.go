package ipvs

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/plane"
)

const (
	// pollPeriod leaves time for a comparison, so that an edit is repaired within 2 s.
	pollPeriod = 1500 * time.Millisecond

	// compareEvery is the number of polls after which everything is compared.
	compareEvery = 40

	// fewServers is the number of virtual servers up to which a poll reads destinations.
	fewServers = 1000
)

// Watch implements plane.Plane. Chains report their edits; virtual servers, addresses and
// sets are polled.
func (p *Plane) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return p.kernel.Chains.Watch(ctx, kubechain.Proxy, subscribed, func(e iptables.Edit) { report(plane.Edit(e)) })
	})
	group.Go(func() error { return p.poll(ctx, report) })
	return group.Wait()
}

// poll compares a digest of what the kernel holds with that after the last write.
func (p *Plane) poll(ctx context.Context, report func(plane.Edit)) error {
	var last string    // the digest
	wrote := int64(-1) // the writes before it
	polls := 0
	return plane.Poll(ctx, p.opt.Poll, func() {}, func(plane.Edit) {
		before := p.writes.Load()
		now, err := p.digest(ctx)
		if err != nil || before%2 != 0 || p.writes.Load() != before { // a write is on its way
			return
		}
		if wrote == before && now != last {
			report(plane.Edit{What: "virtual servers, addresses or sets", Since: time.Now().Add(-p.opt.Poll)})
		}
		last, wrote = now, before
		if polls++; polls%compareEvery == 0 {
			report(plane.Edit{Possible: true})
		}
	})
}

// digest returns a text that changes with an edit of a virtual server, of an address, or
// of the number of members in a set; if there are few virtual servers, also of a
// destination.
func (p *Plane) digest(ctx context.Context) (string, error) {
	list, err := p.kernel.Servers.List(ctx)
	if err != nil {
		return "", err
	}
	lines := make([]string, 0, len(list))
	var asked []ipvs.Server
	for _, l := range list {
		lines = append(lines, fmt.Sprint(l.Server, l.Settings))
		asked = append(asked, l.Server)
	}
	if len(asked) > fewServers {
		asked = nil
	}
	dests, err := p.kernel.Servers.Destinations(ctx, asked...)
	if err != nil {
		return "", err
	}
	for i, of := range dests {
		for _, d := range of {
			lines = append(lines, fmt.Sprint(asked[i], d.At, d.Weight))
		}
	}
	addrs, exists, err := p.addresses(ctx)
	if err != nil {
		return "", err
	}
	lines = append(lines, fmt.Sprint(addrs, exists))
	sizes, err := p.kernel.Sets.Sizes(ctx)
	if err != nil {
		return "", err
	}
	for _, name := range p.setNames() {
		size, exists := sizes[name]
		lines = append(lines, fmt.Sprint(name, size, exists))
	}
	slices.Sort(lines)
	h := fnv.New64a()
	for _, line := range lines {
		_, _ = h.Write([]byte(line)) // never fails
	}
	return fmt.Sprint(h.Sum64()), nil
}
