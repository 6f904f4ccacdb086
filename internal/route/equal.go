package route

import (
	"maps"
	"net/netip"
	"slices"
)

// equal reports whether two routes are equal.
func (s *Service) equal(t *Service) bool {
	var c comparison
	return s.Name == t.Name && s.Ignored == t.Ignored && s.Lost == t.Lost && s.Health.Equal(t.Health) &&
		slices.EqualFunc(s.Ports, t.Ports, c.ports)
}

// Equal reports whether two ports are equal.
func (p Port) Equal(q Port) bool { return new(comparison).ports(p, q) }

// comparison keeps the lists of allowed clients that were equal last. All frontends of a Service share one.
type comparison struct{ mine, theirs []netip.Prefix }

func (c *comparison) ports(p, q Port) bool {
	return p.Name == q.Name && p.Protocol == q.Protocol && p.Family == q.Family && p.Affinity == q.Affinity &&
		p.Scheduler == q.Scheduler && p.SlowStart == q.SlowStart && p.ProxyHeader == q.ProxyHeader &&
		p.PreserveDestination == q.PreserveDestination && p.HealthPort == q.HealthPort &&
		slices.EqualFunc(p.Frontends, q.Frontends, c.frontends) &&
		slices.Equal(p.Cluster, q.Cluster) && slices.Equal(p.Local, q.Local) &&
		slices.Equal(p.Here, q.Here) && slices.Equal(p.Unplaced, q.Unplaced) && slices.Equal(p.Serving, q.Serving) &&
		p.Ejection == q.Ejection && slices.Equal(p.Ejected, q.Ejected) && maps.Equal(p.Weights, q.Weights) &&
		slices.Equal(p.Owners, q.Owners)
}

func (c *comparison) frontends(f, g Frontend) bool {
	return f.Kind == g.Kind && f.Addr == g.Addr && f.Port == g.Port &&
		f.Pods == g.Pods && f.Node == g.Node && f.Others == g.Others &&
		f.Restricted == g.Restricted && c.allow(f.Allow, g.Allow)
}

func (c *comparison) allow(a, b []netip.Prefix) bool {
	if identical(a, c.mine) && identical(b, c.theirs) {
		return true
	}
	if !slices.Equal(a, b) {
		return false
	}
	c.mine, c.theirs = a, b
	return true
}

// identical reports whether two lists are the same memory.
func identical(a, b []netip.Prefix) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
