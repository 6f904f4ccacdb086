package route

import (
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Order returns the names of all Services in the order in which a plane writes them when it writes everything: first
// the Services that all others need, which are the API server and DNS, then by name.
func (t *Table) Order() []cluster.Name {
	var needed []cluster.Name
	names := make([]cluster.Name, 0, len(t.Services))
	for name, svc := range t.Services {
		if need(svc) == usual {
			names = append(names, name)
		} else {
			needed = append(needed, name)
		}
	}
	slices.SortFunc(names, cluster.Name.Compare)
	slices.SortFunc(needed, func(a, b cluster.Name) int {
		return cmp.Or(cmp.Compare(need(t.Services[a]), need(t.Services[b])), a.Compare(b))
	})
	return slices.Concat(needed, names)
}

// Ranks of Services, the lowest first. DNS servers of tenants come after the DNS servers of the cluster.
const (
	apiServer = iota
	clusterDNS
	otherDNS
	usual
)

// need returns the rank of a Service.
func need(svc *Service) int {
	switch {
	case svc.Name == cluster.Name{Namespace: "default", Name: "kubernetes"}:
		return apiServer
	case !svc.hasPort(cluster.DNSPort):
		return usual
	case svc.Name.Namespace == "kube-system":
		return clusterDNS
	}
	return otherDNS
}

// Vital reports whether a node does not work without the Service: that of the API server, or DNS in kube-system. A
// Service of another namespace is not vital: a tenant must not be able to make nodes unhealthy. Nor is a nil Service.
func (s *Service) Vital() bool { return s != nil && need(s) <= clusterDNS }

func (s *Service) hasPort(port uint16) bool {
	for i := range s.Ports {
		if slices.ContainsFunc(s.Ports[i].Frontends, func(f Frontend) bool { return f.Port == port }) {
			return true
		}
	}
	return false
}
