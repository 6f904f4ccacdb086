package inspect

import (
	"context"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// statusTime is how long a status waits for the loop: who asks how it is wants
// to hear that it is busy.
const statusTime = time.Second

// Status says how the daemon is. To what Options.Status knows it adds the time,
// Node, Lag, Counts, Pending, Error and what History keeps, and Health where
// nothing is said of it.
func (i *Inspector) Status(ctx context.Context) Status {
	var s Status
	if i.opt.Status != nil {
		s = i.opt.Status(ctx)
	}
	s.At = time.Now()
	if n := i.opt.Store.Node(); n != nil {
		s.Node = Node{Name: n.Name, Zone: n.Zone, Addresses: n.Addresses, Leaving: n.Leaving}
	}
	w := i.opt.Store.Backlog()
	s.Lag = Lag{Oldest: w.Since, Services: w.Services, Slices: w.Slices}
	i.opt.History.fill(&s)
	i.ask(ctx, &s)
	return s
}

// ask fills in what the loop knows.
func (i *Inspector) ask(ctx context.Context, s *Status) {
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	var services []*route.Service
	started := false
	err := i.opt.Loop.Do(ctx, func(v proxy.View) {
		services = all(v)
		s.Pending, started = len(v.Pending), v.Started
		if v.Err != nil {
			s.Error = v.Err.Error()
		}
	})
	if err != nil {
		s.Busy = "a write to the kernel is under way"
		started = !s.LastSync.At.IsZero()
	}
	if s.Health.State == "" {
		s.Health = health(started, s.Error)
	}
	rejected := s.Counts.Rejected
	s.Counts = countAll(services)
	s.Counts.Rejected = rejected
}

// all returns every Service that there is.
func all(v proxy.View) []*route.Service {
	list := make([]*route.Service, 0, len(v.Table.Services))
	for _, svc := range v.Table.Services {
		list = append(list, svc)
	}
	return list
}

func health(started bool, failure string) Health {
	switch {
	case !started:
		return Health{Starting, "not everything has been written once"}
	case failure != "":
		return Health{Sick, "the last write failed"}
	}
	return Health{State: Healthy}
}

// countAll counts what Services come to.
func countAll(services []*route.Service) Counts {
	var c Counts
	seed := maphash.MakeSeed()
	var seen []uint64 // hashes, as this may be a million backends
	for _, svc := range services {
		if len(svc.Ports) == 0 {
			c.NotProgrammed++
			continue
		}
		c.Services++
		c.Ports += len(svc.Ports)
		for i := range svc.Ports {
			p := &svc.Ports[i]
			c.Fronts += len(p.Fronts)
			for _, list := range [][]netip.AddrPort{p.Cluster, p.Local} {
				for _, b := range list {
					seen = append(seen, maphash.Comparable(seed, b))
				}
			}
		}
	}
	slices.Sort(seen)
	c.Backends = len(slices.Compact(seen))
	return c
}

// maxNames is how many names a completion is offered.
const maxNames = 200

// Names lists Services whose name, or namespace and name, begin with a prefix,
// sorted; not all, if they are many.
func (i *Inspector) Names(ctx context.Context, f Filter) ([]cluster.Name, error) {
	var services []*route.Service
	if i.opt.Loop.Do(ctx, func(v proxy.View) { services = all(v) }) != nil {
		return nil, errBusy
	}
	var names []cluster.Name
	for _, svc := range services {
		if f.begins(svc.Name) {
			names = append(names, svc.Name)
		}
	}
	slices.SortFunc(names, cluster.Name.Compare)
	return names[:min(len(names), maxNames)], nil
}
