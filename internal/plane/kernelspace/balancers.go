package kernelspace

import (
	"context"
	"errors"
	"net/netip"
	"slices"
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

// balancer creates a load balancer, or changes it. If an endpoint was made anew, or the load balancer is gone, it tries again
// with what HNS has now.
func (w *writer) balancer(ctx context.Context, k key, v value) error {
	had, has := w.state.balancers[k]
	if ids, _ := w.known(v.endpoints); has && had.same(v) && slices.Equal(had.ids, ids) {
		return nil
	}
	err := w.put(ctx, k, v)
	if errors.Is(err, hns.ErrNotFound) {
		if err := w.list(ctx); err != nil {
			return err
		}
		err = w.put(ctx, k, v)
	}
	if errors.Is(err, hns.ErrNotFound) {
		if err := w.deleteBalancer(ctx, k); err != nil {
			return err
		}
		err = w.put(ctx, k, v)
	}
	if _, other := w.state.balancers[k.first()]; errors.Is(err, hns.ErrPortExists) && k.target != 0 && other {
		return errOneTarget
	}
	return err
}

// put writes a load balancer. One whose backends HNS does not have is deleted: a container of this node has just
// ended, and the cluster does not know it yet.
func (w *writer) put(ctx context.Context, k key, v value) error {
	ids, err := w.resolve(ctx, k, v)
	if err != nil {
		return err
	}
	had, has := w.state.balancers[k]
	l := hns.LoadBalancer{
		ID: had.id, VIP: k.addr, Protocol: k.protocol, Port: k.port, Target: v.target,
		Endpoints: ids, SourceVIP: v.source, Flags: v.flags,
	}
	if has && len(ids) > 0 && w.state.features.Modify {
		if err := w.hns.ModifyLoadBalancer(ctx, l); err != nil {
			return err
		}
		if before, is := w.modified[had.id]; is {
			had.value = before.old
		}
		w.modified[had.id] = modification{had.value, v}
		w.state.balancers[k] = balancer{had.id, ids, v}
		return nil
	}
	if err := w.deleteBalancer(ctx, k); err != nil || len(ids) == 0 {
		return err
	}
	id, err := w.hns.CreateLoadBalancer(ctx, l)
	if err == nil {
		w.state.balancers[k] = balancer{id, ids, v}
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

// resolve returns the IDs of the backends of a load balancer. If one is missing, it reads the list again, once in a
// write. If it is missing still, the load balancer gets it when it is created.
func (w *writer) resolve(ctx context.Context, k key, v value) ([]string, error) {
	ids, missing := w.known(v.endpoints)
	if len(missing) > 0 && !w.listed {
		if err := w.list(ctx); err != nil {
			return nil, err
		}
		ids, missing = w.known(v.endpoints)
	}
	for _, a := range missing {
		if w.lacking[a] == nil {
			w.lacking[a] = map[key]value{}
		}
		w.lacking[a][k] = v
	}
	return ids, nil
}

// list reads the endpoints again.
func (w *writer) list(ctx context.Context) error {
	list, err := w.hns.Endpoints(ctx)
	if err != nil {
		return err
	}
	w.listed = true
	w.state.setEndpoints(list)
	return nil
}

// known returns the IDs of the endpoints with some addresses, and the addresses without an endpoint.
func (w *writer) known(addrs string) (ids []string, missing []netip.Addr) {
	for text := range strings.FieldsSeq(addrs) {
		a, err := netip.ParseAddr(text)
		if e, has := w.state.endpoints[a]; err == nil && has {
			ids = append(ids, e.ID)
		} else if err == nil {
			missing = append(missing, a)
		}
	}
	return ids, missing
}

// complete adds an endpoint that was created to the load balancers that lack it.
func (w *writer) complete(ctx context.Context, a netip.Addr) error {
	for k, v := range w.lacking[a] {
		if err := w.balancer(ctx, k, v); err != nil {
			return err
		}
		delete(w.lacking[a], k)
	}
	delete(w.lacking, a)
	return nil
}

// forget removes a load balancer from those that lack an endpoint.
func (w *writer) forget(k key) {
	for _, users := range w.lacking {
		delete(users, k)
	}
}
