package route

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Order returns the names of all Services in the order in which a plane writes them when
// it writes everything: first those that all others need, which are the API server's and
// those of DNS, then by name.
func (t *Table) Order() []cluster.Name {
	return slices.SortedFunc(maps.Keys(t.Services), func(a, b cluster.Name) int {
		return cmp.Or(cmp.Compare(t.rank(a), t.rank(b)), a.Compare(b))
	})
}

// dnsPort is the port of DNS servers.
const dnsPort = 53

// rank is lower for Services that others need. The namespace kube-system is ahead of the
// DNS servers of tenants.
func (t *Table) rank(name cluster.Name) int {
	switch {
	case name == cluster.Name{Namespace: "default", Name: "kubernetes"}:
		return 0
	case !t.Services[name].hasPort(dnsPort):
		return 3
	case name.Namespace == "kube-system":
		return 1
	}
	return 2
}

// hasPort reports whether a frontend of the Service has a port.
func (s *Service) hasPort(port uint16) bool {
	for i := range s.Ports {
		if slices.ContainsFunc(s.Ports[i].Frontends, func(f Frontend) bool { return f.Port == port }) {
			return true
		}
	}
	return false
}
