package kernelspace

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
)

func (w *writer) deleteBalancer(ctx context.Context, k key) error {
	b, has := w.state.balancers[k]
	if !has {
		return nil
	}
	if err := w.hns.DeleteLoadBalancer(ctx, b.id); err != nil && !errors.Is(err, hns.ErrNotFound) {
		return err
	}
	delete(w.state.balancers, k)
	delete(w.unmoved, k)
	return nil
}

// balancer creates a load balancer, or changes it. One whose backends HNS does not have is deleted:
// a container of this node has just ended, and the cluster does not know it yet.
func (w *writer) balancer(ctx context.Context, k key, v value) error {
	had, has := w.state.balancers[k]
	if has && had.same(v) {
		return nil
	}
	ids, err := w.resolve(ctx, v.endpoints)
	if err != nil {
		return err
	}
	l := hns.LoadBalancer{
		ID: had.id, VIP: k.addr, Protocol: k.protocol, Port: k.port, Target: v.target,
		Endpoints: ids, SourceVIP: v.source, Flags: v.flags,
	}
	if has && len(ids) > 0 && w.state.features.Modify {
		if err := w.hns.ModifyLoadBalancer(ctx, l); err != nil {
			return err
		}
		w.modified[had.id] = modification{had.value, v}
		w.state.balancers[k] = balancer{had.id, v}
		return nil
	}
	if err := w.deleteBalancer(ctx, k); err != nil || len(ids) == 0 {
		return err
	}
	id, err := w.hns.CreateLoadBalancer(ctx, l)
	if _, other := w.state.balancers[k.first()]; errors.Is(err, hns.ErrPortExists) && k.target != 0 && other {
		return errOneTarget
	}
	if err == nil {
		w.state.balancers[k] = balancer{id, v}
	}
	return err
}

// stuck reports whether HNS has a load balancer as it was before a change in place that it confirmed, as some
// versions did (kubernetes/kubernetes#131466). It forgets all changes.
func (w *writer) stuck(s *state) bool {
	found := false
	for _, b := range s.balancers {
		if m, changed := w.modified[b.id]; changed && b.same(m.old) && !b.same(m.new) {
			found = true
		}
	}
	w.modified = map[string]modification{}
	return found
}

// resolve returns the IDs of endpoints. If one is missing, it reads the list again, once in a write.
func (w *writer) resolve(ctx context.Context, addrs string) ([]string, error) {
	ids, missing := w.known(addrs)
	if !missing || w.listed {
		return ids, nil
	}
	list, err := w.hns.Endpoints(ctx, w.state.network.ID)
	if err != nil {
		return nil, err
	}
	w.listed = true
	w.state.setEndpoints(list)
	ids, _ = w.known(addrs)
	return ids, nil
}

func (w *writer) known(addrs string) (ids []string, missing bool) {
	for a := range strings.FieldsSeq(addrs) {
		addr, err := netip.ParseAddr(a)
		e, has := w.state.endpoints[addr]
		if err != nil || !has {
			missing = true
			continue
		}
		ids = append(ids, e.ID)
	}
	return ids, missing
}
