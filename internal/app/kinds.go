package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// Modes returns the names of data planes.
func Modes(kinds []plane.Kind) []string {
	return distinct(kinds, func(k plane.Kind) string { return k.Mode })
}

// Binds returns the ways in which clients reach the sockets of data planes that have some.
func Binds(kinds []plane.Kind) []config.Bind {
	return distinct(kinds, func(k plane.Kind) config.Bind { return k.Bind })
}

// distinct returns a property of data planes, each value once, without the empty one.
func distinct[T ~string](kinds []plane.Kind, of func(plane.Kind) T) (values []T) {
	for _, k := range kinds {
		if v := of(k); v != "" && !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}

// kind returns the plane of the configured mode, which the configuration has checked.
func (o Options) kind() plane.Kind {
	return o.Kinds[slices.IndexFunc(o.Kinds, func(k plane.Kind) bool {
		return k.Mode == o.Config.Mode && k.Bind == o.Config.Userspace.Bind
	})]
}

// AfterStop returns what happens to traffic after the process has stopped, for its log.
func AfterStop(o Options) string {
	if o.kind().Persistent {
		return "the rules stay"
	}
	return "Services are not served until it runs again"
}

// setup returns what planes are opened with, except families and reports.
func (o Options) setup() plane.Setup {
	return plane.Setup{
		Config: o.Config, NetNS: o.NetNS, Log: o.Log,
		Local: address.New(address.Options{NetNS: o.NetNS, Except: takeover.ServiceDevice}).List,
	}
}

// policy returns the policy of the configuration, with the limits of the plane.
func (o Options) policy(families []route.Family) route.Options {
	c, kind := o.Config, o.kind()
	p := route.Options{
		NodeName:      c.NodeName,
		Families:      families,
		Detector:      c.Detector,
		MasqueradeAll: c.MasqueradeAll,
		NodePorts:     c.NodePorts,
		Excess:        kind.Excess,
		ListLocal:     kind.ListLocal,
		Scheduler:     c.Scheduler,
		Direct:        kind.Facts.Direct,
	}
	if c.Unprivileged() { // every address is as good, as none serves NodePorts
		p.NodePorts = route.NodePortOptions{All: true}
	}
	for _, l := range []route.Listener{
		{At: c.Healthz, Name: "health server (healthzBindAddress)"},
		{At: c.Metrics, Name: "metrics server (metricsBindAddress)"},
	} {
		if l.At.IsValid() {
			p.Listeners = append(p.Listeners, l)
		}
	}
	if c.BindAddress.IsValid() && !c.BindAddress.IsUnspecified() {
		p.Primary = c.BindAddress
	}
	return p
}

// openPlane verifies that the kernel can do what the mode needs, and opens the plane for the life of the process.
func (d *daemon) openPlane(ctx context.Context) error {
	o := d.o
	kind := o.kind()
	support, err := kind.Probe(ctx, o.NetNS)
	if err != nil {
		return err
	}
	for _, note := range support.Notes {
		o.Log.LogAttrs(ctx, slog.LevelInfo, note)
	}
	s := o.setup()
	s.Families, s.Report, s.Peers = support.Families(), d.report, d.store.Peers()
	if s.Inherited, err = o.inherited(); err != nil {
		return err
	}
	if d.plane, err = kind.Open(ctx, s); err != nil {
		return err
	}
	if d.plane.How != "" {
		o.Log.Info("Rules are written " + d.plane.How)
	}
	d.families = s.Families
	d.logScheduler()
	return nil
}

// logScheduler logs the scheduler of Services that name none, if the configuration has one of IPVS for another mode.
func (d *daemon) logScheduler() {
	facts := d.facts()
	if d.o.Config.Scheduler == "" || facts.AnyScheduler {
		return
	}
	is := facts.Scheduling(&route.Port{Scheduler: d.o.Config.Scheduler})
	d.o.Log.Info("Services without the annotation "+convert.AnnotationScheduler+" have the scheduler of the configuration",
		"scheduler", d.o.Config.Scheduler, "chooses", is.String())
}

// facts returns those of the plane that is open.
func (d *daemon) facts() plane.Facts {
	if d.plane.Facts != nil {
		return *d.plane.Facts
	}
	return d.o.kind().Facts
}

// leftovers returns the planes that may have left rules when the mode changed, except
// those whose rules the take-over removes, and the one that this plane stands on.
func leftovers(o Options) []takeover.Leftover {
	var list []takeover.Leftover
	for _, k := range o.Kinds {
		if k.Mode == o.Config.Mode || k.Mode == o.kind().On || k.Remove == nil {
			continue
		}
		list = append(list, takeover.Leftover{Mode: k.Mode, Remove: func(ctx context.Context) ([]string, error) {
			return removeRules(ctx, k, o)
		}})
	}
	return list
}

// removeRules removes all rules of a plane. A kernel that lacks what the plane needs has none.
func removeRules(ctx context.Context, k plane.Kind, o Options) ([]string, error) {
	if _, err := k.Probe(ctx, o.NetNS); errors.Is(err, probe.ErrFeature) {
		return nil, nil
	}
	return k.Remove(ctx, o.setup())
}

// mechanisms returns those with the names of plane.Kind or plane.Opened.
func mechanisms(names []string) []takeover.Mechanism {
	var all []takeover.Mechanism
	for _, name := range names {
		all = append(all, takeover.Mechanism(name))
	}
	return all
}

// Choice is a mode, and why it was chosen.
type Choice struct{ Mode, Reason string }

// Choose returns the first mode whose probe succeeds. If there is none, it returns the
// default, whose probe returns the reason.
func Choose(ctx context.Context, kinds []plane.Kind, netns int) Choice {
	var passed []string
	for _, k := range kinds {
		_, err := k.Probe(ctx, netns)
		if err != nil {
			passed = append(passed, fmt.Sprintf("not %s: %s", k.Mode, strings.ReplaceAll(err.Error(), "\n", "; ")))
			continue
		}
		if len(passed) == 0 {
			return Choice{k.Mode, "the default, and this kernel supports it"}
		}
		return Choice{k.Mode, "the best this kernel can do; " + strings.Join(passed, "; ")}
	}
	return Choice{kinds[0].Mode, "the default, although no mode works here; " + strings.Join(passed, "; ")}
}
