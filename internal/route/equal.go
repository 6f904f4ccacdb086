package route

import "slices"

// equal reports whether two routes say the same.
func (s *Service) equal(t *Service) bool {
	return s.Name == t.Name && s.Ignored == t.Ignored && s.Health.equal(t.Health) &&
		slices.EqualFunc(s.Ports, t.Ports, Port.equal)
}

func (p Port) equal(q Port) bool {
	return p.Name == q.Name && p.Protocol == q.Protocol && p.Family == q.Family && p.Affinity == q.Affinity &&
		slices.EqualFunc(p.Fronts, q.Fronts, Front.equal) &&
		slices.Equal(p.Cluster, q.Cluster) && slices.Equal(p.Local, q.Local) &&
		slices.Equal(p.Here, q.Here) && slices.Equal(p.Serving, q.Serving)
}

func (f Front) equal(g Front) bool {
	return f.Kind == g.Kind && f.Addr == g.Addr && f.Port == g.Port &&
		f.Pods == g.Pods && f.Node == g.Node && f.Others == g.Others &&
		f.Restricted == g.Restricted && slices.Equal(f.Allow, g.Allow)
}
