package route

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// External reports whether clients outside use the frontend at an address that all nodes share.
func (f *Frontend) External() bool { return f.Kind == ExternalIP || f.Kind == LoadBalancer }

// ParseExternal reports whether nodes pass connections of clients outside on to each other.
func ParseExternal(text string) (direct bool, err error) {
	if text != "direct" && text != "cluster" {
		return false, errors.New("expected direct or cluster")
	}
	return text == "direct", nil
}

// isDirect reports whether nodes pass connections of clients outside on: the Service requests it, all nodes serve its
// external addresses, and the port has one. It does not apply to SCTP.
func isDirect(svc *cluster.Service, won []candidate) bool {
	external := func(c candidate) bool { return c.kind == ExternalIP || c.kind == LoadBalancer }
	return svc.Direct && !svc.ExternalLocal && svc.Ports[won[0].port].Protocol != cluster.SCTP &&
		slices.ContainsFunc(won, external)
}

// owners returns the nodes with usable backends. It must not depend on this node: topology hints do not count.
func owners(st state, candidates []Choice) []Owner {
	choose(candidates, Cluster, &view{})
	weight, sum := weights(st, candidates), map[string]uint32{}
	for i := range candidates {
		c := &candidates[i]
		if c.Reason != Chosen || c.Endpoint.Node == "" {
			continue
		}
		w, has := weight[c.Backend]
		if !has {
			w = 1
		}
		if w > 0 {
			sum[c.Endpoint.Node] = min(sum[c.Endpoint.Node], math.MaxUint32-uint32(w)) + uint32(w)
		}
	}
	var list []Owner
	for node, w := range sum {
		list = append(list, Owner{node, w})
	}
	slices.SortFunc(list, func(a, b Owner) int { return cmp.Compare(a.Node, b.Node) })
	return list
}
