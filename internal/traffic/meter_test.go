package traffic

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// counts is a plane that counts.
type counts struct {
	counted plane.Counted
	failed  map[plane.Target]plane.Failed
	err     error
}

func (c *counts) options() MeterOptions {
	return MeterOptions{
		Traffic: func(context.Context, *route.Snapshot) (plane.Counted, error) { return c.counted, c.err },
		Failed:  func() map[plane.Target]plane.Failed { return maps.Clone(c.failed) },
	}
}

// set sets the number of connections to a port, in one family.
func (c *counts) set(name string, n uint64) { c.setIn(route.IPv4, name, n) }

func (c *counts) setIn(family route.Family, name string, n uint64) {
	id := named(name)
	id.Family = family
	if c.counted == nil {
		c.counted = plane.Counted{}
	}
	c.counted[id] = plane.PortTraffic{Traffic: plane.Traffic{plane.Connections: n, plane.Live: 5}}
}

func (c *counts) fail(backend string, f plane.Failed) {
	if c.failed == nil {
		c.failed = map[plane.Target]plane.Failed{}
	}
	c.failed[target(backend)] = f
}

func target(backend string) plane.Target {
	return plane.Target{Protocol: cluster.TCP, Backend: at(backend, 8080)}
}

func (m *Meter) mustRead(t *testing.T, routes *route.Snapshot) {
	t.Helper()
	if _, err := m.Read(t.Context(), routes); err != nil {
		t.Fatal(err)
	}
}

// sums returns the sums of a port: connections, unanswered and refused ones.
func (m *Meter) sums(name string) [3]uint64 {
	t := m.Of(named(name))
	return [3]uint64{t[plane.Connections], t[plane.Unanswered], t[plane.Refusals]}
}

// The sums of both families only grow, even if the kernel's counters restart, or a backend with failures is deleted and
// comes back.
func TestSumsOnlyGrow(t *testing.T) {
	c := &counts{}
	m, routes := NewMeter(c.options()), services(t, []string{"web"}, web1, web2)
	c.set("web", 10)
	c.setIn(route.IPv6, "web", 1)
	c.fail(web1, plane.Failed{Unanswered: 7, Refused: 1})
	c.fail(web2, plane.Failed{Refused: 2})
	m.mustRead(t, routes)
	if got, want := m.sums("web"), [3]uint64{11, 7, 3}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}

	c.set("web", 4) // the counter restarted
	delete(c.failed, target(web1))
	m.mustRead(t, routes)
	if got, want := m.sums("web"), [3]uint64{15, 7, 3}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}

	delete(c.counted, c.port(route.IPv6))
	c.fail(web1, plane.Failed{Unanswered: 1})
	m.mustRead(t, routes)
	if got, want := m.sums("web"), [3]uint64{15, 8, 3}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func (c *counts) port(family route.Family) route.PortID {
	id := named("web")
	id.Family = family
	return id
}

// Failures of a backend count for each Service that has it, and for a Service that had it if the plane still counts it.
func TestFailuresOfSharedAndFormerBackends(t *testing.T) {
	c := &counts{}
	m, routes := NewMeter(c.options()), services(t, []string{"api", "web"}, web1)
	c.set("api", 1)
	c.set("web", 1)
	web := c.counted[c.port(route.IPv4)]
	web.Backends = map[netip.AddrPort]plane.BackendTraffic{at(web2, 8080): {Connections: 1}}
	c.counted[c.port(route.IPv4)] = web
	c.fail(web1, plane.Failed{Refused: 1})
	c.fail(web2, plane.Failed{Unanswered: 5})
	m.mustRead(t, routes)
	if got, want := m.sums("api"), [3]uint64{1, 0, 1}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := m.sums("web"), [3]uint64{1, 5, 1}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The sums of a deleted Service end, although the plane still counts it for a moment.
func TestSumsOfADeletedService(t *testing.T) {
	c := &counts{}
	m := NewMeter(c.options())
	c.set("web", 3)
	c.set("gone", 3)
	m.mustRead(t, services(t, []string{"gone", "web"}, web1))
	if got, want := m.sums("gone"), [3]uint64{3, 0, 0}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	m.mustRead(t, services(t, []string{"web"}, web1))
	if got := m.Of(named("gone")); got != nil || len(m.ports) != 1 {
		t.Errorf("got %v and %d ports", got, len(m.ports))
	}
}

// Signals that a plane lacks are omitted. A plane without counters returns ErrNotCounted.
func TestSignalsThatAreNotKnown(t *testing.T) {
	c := &counts{}
	c.set("web", 3)
	routes := services(t, []string{"web"}, web1)
	m := NewMeter(MeterOptions{Traffic: c.options().Traffic})
	m.mustRead(t, routes)
	if got, want := m.Of(named("web")), (plane.Traffic{plane.Connections: 3}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := NewMeter(MeterOptions{}).Read(t.Context(), routes); !errors.Is(err, ErrNotCounted) {
		t.Error(err)
	}
	c.err = errors.New("no buffer space")
	if _, err := m.Scrape(t.Context(), routes); !errors.Is(err, c.err) {
		t.Error(err)
	}
}
