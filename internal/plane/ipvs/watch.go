package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/plane"
)

const (
	// pollPeriod leaves time for a comparison, so that an edit is repaired within 2 s.
	pollPeriod = 1500 * time.Millisecond

	// compareEvery is the number of polls after which everything is compared.
	compareEvery = 40

	// fewServers is the number of virtual servers up to which a poll reads them all.
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

// poll compares the number of virtual servers with the expected one, and a digest of what
// the kernel holds with that of the poll before, unless something was written between.
func (p *Plane) poll(ctx context.Context, report func(plane.Edit)) error {
	var last string    // the digest
	wrote := int64(-1) // the writes before it
	polls := 0
	return plane.Poll(ctx, p.opt.Poll, func() {}, func(plane.Edit) {
		before, four, six := p.writes.Load(), p.servers[0].Load(), p.servers[1].Load()
		count, countErr := p.kernel.Servers.Count(ctx)
		now, err := p.digest(ctx, int(four+six))
		if countErr != nil || err != nil || before%2 != 0 || p.writes.Load() != before { // a write is on its way
			return
		}
		if int64(count) != four || wrote == before && now != last {
			report(plane.Edit{What: "virtual servers, addresses or sets", Since: time.Now().Add(-p.opt.Poll)})
		}
		last, wrote = now, before
		if polls++; polls%compareEvery == 0 {
			report(plane.Edit{Possible: true})
		}
	})
}

// digest returns a text that changes with the number of members in a set, and, if there are
// few virtual servers, with each edit of one, of a destination or of an address.
func (p *Plane) digest(ctx context.Context, servers int) (string, error) {
	var lines []string
	if servers <= fewServers {
		s := p.newState()
		if err := errors.Join(p.readAddresses(ctx, s), p.readServers(ctx, s)); err != nil {
			return "", err
		}
		lines = append(lines, fmt.Sprint(s.device, s.addrs)) // fmt sorts maps
		for of, f := range s.servers {
			lines = append(lines, fmt.Sprint(of, f.settings, f.dests))
		}
		slices.Sort(lines)
	}
	sizes, err := p.kernel.Sets.Sizes(ctx)
	return fmt.Sprint(lines, sizes), err
}
