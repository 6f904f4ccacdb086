//go:build linux

package conformance

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Run runs every scenario with each plane. The calling test binary must have entered its own namespaces with lab.Main.
func Run(t *testing.T, planes ...Plane) {
	for _, p := range planes {
		t.Run(p.Name, func(t *testing.T) {
			if p.Need != nil {
				p.Need(t)
			}
			for _, s := range slices.DeleteFunc(scenarios(), func(s scenario) bool { return s.excluded(p) }) {
				t.Run(s.name(), func(t *testing.T) { s.run(t, p) })
			}
		})
	}
}

func (s scenario) run(t *testing.T, p Plane) {
	t.Parallel() // most of the time is spent waiting
	if reason := s.skipReason(p); reason != "" {
		t.Skip(reason)
	}
	variants := s.variants()
	if p.Launch != nil {
		variants = s.oneVariant(variants)
	}
	w := newWorld(t, s.labFor(p))
	for i, name := range slices.Sorted(maps.Keys(variants)) {
		t.Run(name, func(t *testing.T) {
			e := s.runVariant(t, p, translator{ipv6: variants[name]}, w)
			if i+1 == len(variants) {
				return
			}
			if err := e.leave(); err != nil {
				t.Errorf("leave the lab to the next variant: %v", err)
			}
		})
	}
}

// runVariant runs a scenario in one IP family.
func (s scenario) runVariant(t *testing.T, p Plane, tr translator, w *world) *env {
	e := s.setUp(t, p, tr, w)
	for i, step := range s.steps {
		if err := step(e); err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
	}
	return e
}

// setUp starts the proxy of a scenario in a lab.
func (s scenario) setUp(t *testing.T, p Plane, tr translator, w *world) *env {
	t.Helper()
	e := &env{
		timeout:    changeTimeout,
		translator: tr,
		t:          t,
		world:      w,
		lab:        w.enter(t),
		settings:   s.settings,
		objects:    newObjects(s.settings),
		hosts:      map[string]*lab.Host{},
		found:      map[string]bool{},
		flows:      map[string]*lab.Flow{},
		answered:   map[string]netip.AddrPort{},
	}
	e.nodeAddrs = slices.Clone(e.lab.NodeA.Addrs())
	t.Cleanup(e.closeFlows)
	e.proxy = newProxy(t, e.lab.NodeA, p, options(s.settings, tr, p.Traits))
	e.proxy.args = arguments(s.settings, tr, p.mode)
	if s.settings.liberal {
		setOn(t, e.lab.NodeA, "net/netfilter/nf_conntrack_tcp_be_liberal")
	}
	var err error
	if e.before, err = stateOf(e.lab.NodeA); err != nil {
		t.Fatalf("%v", err)
	}
	if err := e.prepare(s); err != nil {
		t.Fatalf("prepare: %v", err)
	}
	return e
}

func (s scenario) labFor(p Plane) lab.Options {
	o := s.lab
	o.Cgroups = p.Sockets
	return o
}

// prepare starts the pods, adds the objects and starts the proxy.
func (e *env) prepare(s scenario) error {
	for _, text := range s.pods {
		if err := e.pod(e.text(text)); err != nil {
			return err
		}
	}
	if err := e.change(base(), nil); err != nil {
		return err
	}
	if err := e.change(e.texts(s.cluster), nil); err != nil {
		return err
	}
	return e.proxy.start(e.objects)
}
