package cluster

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Compare orders names by namespace, then name.
func (n Name) Compare(m Name) int {
	return cmp.Or(strings.Compare(n.Namespace, m.Namespace), strings.Compare(n.Name, m.Name))
}

func (s *Service) equal(t *Service) bool {
	return s.Name == t.Name && s.Created.Equal(t.Created) && s.Ignored == t.Ignored && s.Type == t.Type &&
		slices.Equal(s.ClusterIPs, t.ClusterIPs) && slices.Equal(s.ExternalIPs, t.ExternalIPs) &&
		slices.Equal(s.LoadBalancerIPs, t.LoadBalancerIPs) && slices.Equal(s.Ports, t.Ports) &&
		s.InternalLocal == t.InternalLocal && s.ExternalLocal == t.ExternalLocal &&
		s.Restricted == t.Restricted && slices.Equal(s.SourceRanges, t.SourceRanges) &&
		s.Affinity == t.Affinity && s.Scheduler == t.Scheduler && s.SlowStart == t.SlowStart &&
		s.ProxyHeader == t.ProxyHeader && s.PreserveDestination == t.PreserveDestination &&
		maps.Equal(s.Weights, t.Weights) && s.HealthCheckNodePort == t.HealthCheckNodePort
}

func (s *Slice) equal(t *Slice) bool {
	return s.Name == t.Name && s.Service == t.Service && slices.Equal(s.Ports, t.Ports) &&
		slices.EqualFunc(s.Endpoints, t.Endpoints, Endpoint.equal)
}

func (e Endpoint) equal(f Endpoint) bool {
	return e.Addr == f.Addr && e.Node == f.Node && e.Ready == f.Ready && e.Serving == f.Serving &&
		e.Terminating == f.Terminating && e.Hints.equal(f.Hints)
}

func (h *Hints) equal(g *Hints) bool {
	if h == nil || g == nil {
		return h == g
	}
	return slices.Equal(h.Zones, g.Zones) && slices.Equal(h.Nodes, g.Nodes)
}

func (n *Node) equal(m *Node) bool {
	if n == nil || m == nil {
		return n == m
	}
	return n.Name == m.Name && n.Zone == m.Zone &&
		slices.Equal(n.Addresses, m.Addresses) && slices.Equal(n.PodCIDRs, m.PodCIDRs)
}
