package app

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"

	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/reload"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/web"
)

// status is what the parts know of themselves.
func (d *daemon) status(context.Context) inspect.Status {
	s := inspect.Status{
		Version: d.o.Version, PID: os.Getpid(), Since: d.started,
		Health:        d.verdict(),
		Mode:          inspect.Mode{Name: d.o.Config.Mode, Reason: d.o.Reason},
		Source:        d.sourceStatus(),
		Takeover:      d.keeper.State().Lines(),
		Configuration: configuration(d.reload.State()),
		Servers:       []inspect.Server{server("healthz", d.healthz.State()), server("metrics", d.diagnostics.State())},
	}
	for _, f := range d.families {
		s.Families = append(s.Families, f.String())
	}
	for _, e := range d.host.Effects() {
		h := inspect.HostSetting{Name: e.Name, Want: e.Wanted, Was: e.Was, Is: e.Is}
		if e.Err != nil {
			h.Error = e.Err.Error()
		}
		s.HostSettings = append(s.HostSettings, h)
	}
	for _, f := range d.ports.Failing() {
		s.HealthPorts = append(s.HealthPorts, inspect.HealthPort{
			Service: f.Service.String(), Port: f.At.Port(), Error: f.Err.Error(),
		})
	}
	return s
}

// verdict is whether the proxy does its work, and why not.
func (d *daemon) verdict() inspect.Health {
	v := d.health.Verdict()
	switch {
	case !v.Started:
		return inspect.Health{State: inspect.Starting, Reason: "not everything was in the kernel yet"}
	case !v.Live:
		return inspect.Health{State: inspect.Sick, Reason: "a write is overdue"}
	case !v.Eligible:
		return inspect.Health{State: inspect.Sick, Reason: "the Node is leaving, or not known"}
	}
	return inspect.Health{State: inspect.Healthy}
}

func (d *daemon) sourceStatus() inspect.Source {
	kind := "API server"
	if len(d.o.Config.Manifests) > 0 {
		kind = "manifests"
	}
	s := d.source.State()
	return inspect.Source{
		Kind: kind, From: s.From, Connected: s.Connected, Since: s.Since, Trouble: s.Trouble, LastEvent: s.LastEvent,
	}
}

func configuration(s reload.State) inspect.Configuration {
	c := inspect.Configuration{File: s.File, Loaded: s.LoadedAt}
	if s.Refused != nil {
		c.Refused = s.Refused.Error()
	}
	for _, f := range s.RestartDue {
		c.RestartDue = append(c.RestartDue, f.String())
	}
	return c
}

func server(name string, s web.State) inspect.Server {
	out := inspect.Server{Name: name}
	if s.Wanted.IsValid() {
		out.Address = s.Wanted.String()
	}
	if s.Err != nil {
		out.Error = s.Err.Error()
	}
	return out
}

// readings are what metrics read when somebody asks.
func (d *daemon) readings() metrics.Readings {
	return metrics.Readings{
		Totals: d.store.Totals, Backlog: d.store.Backlog,
		Connected:          func() bool { return d.source.State().Connected },
		FlowsEnded:         func() uint64 { return d.node.Flows().Stats().Deleted },
		RestartDue:         func() bool { return len(d.reload.State().RestartDue) > 0 },
		KubeProxyRunning:   func() bool { return d.keeper.State().Rival != nil },
		Leftovers:          func() map[string]int { return byName(d.keeper.State().Leftovers) },
		Removed:            func() map[string]int { return byName(d.keeper.State().Removed) },
		HealthPortFailures: d.ports.Failures,
		HostSettingsFailed: d.settingsFailed,
	}
}

// byName has the same numbers under plain words.
func byName(numbers map[takeover.Mechanism]int) map[string]int {
	named := map[string]int{}
	for mechanism, n := range numbers {
		named[string(mechanism)] = n
	}
	return named
}

func (d *daemon) settingsFailed() int {
	n := 0
	for _, e := range d.host.Effects() {
		if e.Err != nil {
			n++
		}
	}
	return n
}

// identity is what another daemon is told that finds the place taken.
func (d *daemon) identity() control.Identity {
	name, _ := os.Hostname() // one without a name is not worth failing
	return control.Identity{PID: os.Getpid(), Version: d.o.Version, Host: name, Mode: d.o.Config.Mode, Since: d.started}
}

// explainer answers where connections would go.
func (d *daemon) explainer() http.Handler {
	w := address.New(address.Options{NetNS: d.o.NetNS})
	return Explainer{Loop: d.node.Loop(), Store: d.store, Local: w.List, Plane: kindOf(d.o.Config.Mode).explain()}
}

// nodePorts are the ports that Services have on this node.
func (d *daemon) nodePorts(ctx context.Context) ([]uint16, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	ports := map[uint16]bool{}
	err := d.node.Loop().Do(ctx, func(v proxy.View) {
		for _, svc := range v.Table.Services {
			for i := range svc.Ports {
				for _, f := range svc.Ports[i].Fronts {
					if f.Kind == route.NodePort {
						ports[f.Port] = true
					}
				}
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the node ports of all Services: %w", err)
	}
	return slices.Sorted(maps.Keys(ports)), nil
}

// diffTries is how often the kernel is read before a difference is believed: a
// write may come between reading and comparing.
const diffTries = 5

// diff compares the kernel as it is with what should be. It reads through a
// connection of its own, and the loop does not wait for it.
func (d *daemon) diff(ctx context.Context) (inspect.Difference, error) {
	c := d.reload.State().InForce
	planes, err := kindOf(c.Mode).open(parts{c, d.o.NetNS, d.families})
	if err != nil {
		return inspect.Difference{}, err
	}
	p := planes(c)
	var out inspect.Difference
	for range diffTries {
		before, err := d.writes(ctx)
		if err != nil {
			return inspect.Difference{}, err
		}
		if err := p.Refresh(ctx); err != nil {
			return inspect.Difference{}, err
		}
		table, after, err := d.table(ctx)
		if err != nil {
			return inspect.Difference{}, err
		}
		plan := p.Plan(route.Change{Table: table})
		out = inspect.Difference{Steps: plan.Steps(), Text: plan.String()}
		if out.Steps == 0 || before == after {
			break
		}
	}
	return out, nil
}

func (d *daemon) writes(ctx context.Context) (n uint64, err error) {
	err = d.node.Loop().Do(ctx, func(v proxy.View) { n = v.Writes })
	return n, err
}

// table copies what should be. Services in it are shared: they never change.
func (d *daemon) table(ctx context.Context) (t *route.Table, writes uint64, err error) {
	err = d.node.Loop().Do(ctx, func(v proxy.View) {
		t, writes = &route.Table{Host: v.Table.Host, Services: maps.Clone(v.Table.Services)}, v.Writes
	})
	return t, writes, err
}
