package inspect

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
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
	v, err := i.opt.Loop.View(ctx)
	if err != nil {
		s.Busy = "a write to the kernel is under way"
		return
	}
	s.Pending, s.Refused = pending(v), len(v.Refused)
}

// pending returns the number of Services that are pending, except for those
// refused.
func pending(v proxy.View) int {
	n := v.Pending.Len()
	for name := range v.Refused {
		if v.Pending.Has(name) {
			n--
		}
	}
	return n
}

// maxNames is how many names a completion is offered.
const maxNames = 200

// Names lists Services whose name, or namespace and name, begin with a prefix,
// sorted; not all, if they are many.
func (i *Inspector) Names(ctx context.Context, f Filter) ([]cluster.Name, error) {
	v, err := i.opt.Loop.View(ctx)
	if err != nil {
		return nil, errBusy
	}
	var names []cluster.Name
	for svc := range v.Routes.Services() {
		if f.begins(svc.Name) {
			names = append(names, svc.Name)
		}
		if len(names) == maxNames {
			break
		}
	}
	return names, nil
}
