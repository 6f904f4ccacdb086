package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
)

const (
	// pollPeriod leaves time for a comparison, so that a flush is repaired within 2 s.
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

// poller looks for edits of what has no notifications.
type poller struct {
	plane  *Plane
	report func(plane.Edit)
	polls  int
	digest string    // of what the kernel held at the last poll
	wrote  int64     // the writes of the plane before it
	at     time.Time // when it began
}

func (p *Plane) poll(ctx context.Context, report func(plane.Edit)) error {
	w := poller{plane: p, report: report, wrote: -1, at: time.Now()}
	return plane.Poll(ctx, p.opt.Poll, func() {}, func(plane.Edit) {
		trouble := ""
		if err := w.poll(ctx); err != nil {
			trouble = err.Error()
		}
		p.trouble.Store(&trouble)
	})
}

// watchTrouble returns why edits are not noticed; empty: they are.
func (p *Plane) watchTrouble() string {
	if t := p.trouble.Load(); t != nil {
		return *t
	}
	return ""
}

// poll reports an edit if virtual servers are missing, or if the kernel holds something
// else than at the last poll and nothing was written meanwhile. What was read during a
// write does not count.
func (w *poller) poll(ctx context.Context) error {
	if w.polls++; w.polls%compareEvery == 0 {
		w.report(plane.Edit{Possible: true})
	}
	now, before := time.Now(), w.plane.writes.Load()
	missing, err := w.plane.missing(ctx)
	writing := func() bool { return before%2 != 0 || w.plane.writes.Load() != before }
	if err != nil || writing() {
		return err
	}
	digest := ""
	if !missing {
		if digest, err = w.plane.digest(ctx); err != nil || writing() {
			return err
		}
	}
	if missing || w.wrote == before && digest != w.digest {
		w.report(plane.Edit{What: "virtual servers, addresses or sets", Since: w.at})
	}
	w.digest, w.wrote, w.at = digest, before, now
	return nil
}

// missing reports whether there are fewer virtual servers than the plane has left there.
// The kernel counts those of IPv4 only; without any, those of IPv6 are listed.
func (p *Plane) missing(ctx context.Context) (bool, error) {
	four, six := p.servers[0].Load(), p.servers[1].Load()
	if four == 0 && six > 0 {
		list, err := p.kernel.Servers.List(ctx)
		return int64(len(list)) < six, err
	}
	n, err := p.kernel.Servers.Count(ctx)
	return int64(n) < four, err
}

// digest returns a text that changes with the number of members in a set of the plane, and,
// if there are few virtual servers, with each edit of one of the plane's, of a destination
// or of an address.
func (p *Plane) digest(ctx context.Context) (string, error) {
	var lines []string
	if p.servers[0].Load()+p.servers[1].Load() <= fewServers {
		s := p.newState()
		if err := errors.Join(p.readAddresses(ctx, s), p.readServers(ctx, s)); err != nil {
			return "", err
		}
		lines = append(lines, fmt.Sprint(s.device, s.addrs)) // fmt sorts maps
		for of, f := range s.servers {
			if s.bound[of.Addr] || isShortCut(of.Mark) || isNodePort(of.Port) {
				lines = append(lines, fmt.Sprint(of, f.settings, f.dests))
			}
		}
	}
	sizes, err := p.kernel.Sets.Sizes(ctx)
	for _, name := range p.setNames() {
		size, exists := sizes[name]
		lines = append(lines, fmt.Sprint(name, size, exists))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), err
}
