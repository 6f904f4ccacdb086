package inspect

import (
	"context"
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
// Node, Lag, Counts, Pending and what History keeps.
func (i *Inspector) Status(ctx context.Context) Status {
	s := i.opt.Status(ctx)
	s.At = time.Now()
	if own := i.opt.Store.Node(); own != nil {
		s.Node = Node{Name: own.Name, Zone: own.Zone, Addresses: own.Addresses, Leaving: own.Leaving}
	}
	w := i.opt.Store.Backlog()
	s.Lag = Lag{Oldest: w.Since, Services: w.Services, Slices: w.Slices}
	n := i.opt.Sizes()
	s.Counts = Counts{
		Services: n.Services, Ports: n.Ports, Fronts: n.Fronts, Backends: n.Backends, NotProgrammed: n.NotProgrammed,
	}
	i.opt.History.fill(&s)
	i.ask(ctx, &s)
	return s
}

// ask fills in what the loop knows.
func (i *Inspector) ask(ctx context.Context, s *Status) {
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	err := i.opt.Loop.Do(ctx, func(v proxy.View) {
		s.Pending, s.Refused = pending(v), len(v.Refused)
	})
	if err != nil {
		s.Busy = "a write to the kernel is under way"
	}
}

// pending is how many Services are, but for those refused.
func pending(v proxy.View) int {
	n := len(v.Pending)
	for name := range v.Refused {
		if _, both := v.Pending[name]; both {
			n--
		}
	}
	return n
}

// all returns every Service that there is.
func all(v proxy.View) []*route.Service {
	list := make([]*route.Service, 0, len(v.Table.Services))
	for _, svc := range v.Table.Services {
		list = append(list, svc)
	}
	return list
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
