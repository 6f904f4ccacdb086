package kernelspace

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
)

// removeBalancer deletes the load balancer of an entry, unless one of another class is in its place by now.
func (w *writer) removeBalancer(ctx context.Context, k key) error {
	if w.state.balancers[k.stored()].ofAnother(k.class) {
		return nil
	}
	w.forget(k.stored())
	return w.deleteBalancer(ctx, k.stored())
}

// ofAnother reports whether a load balancer was written for an entry of another class.
func (b balancer) ofAnother(c class) bool { return b.kind != "" && b.kind.class() != c }

// taken reports whether the address, protocol and port of an entry have a load balancer of another class, which stays.
func (w *writer) taken(k key) bool { return w.state.balancers[k.stored().first()].ofAnother(k.class) }

func (w *writer) deleteBalancer(ctx context.Context, k key) error {
	b, has := w.state.balancers[k]
	if !has {
		return nil
	}
	if err := w.deleteID(ctx, b.id); err != nil {
		return err
	}
	w.state.drop(k)
	delete(w.unremoved, k)
	return nil
}

// deleteID deletes the load balancer with an ID, if there is one.
func (w *writer) deleteID(ctx context.Context, id string) error {
	if err := w.hns.DeleteLoadBalancer(ctx, id); err != nil && !isGone(err) {
		return err
	}
	delete(w.sent, id)
	return nil
}

// isGone reports whether an error means that an object of a call does not exist. The error of a missing network does not
// mean that.
func isGone(err error) bool {
	return errors.Is(err, hns.ErrNotFound) && !errors.Is(err, hns.ErrNoNetwork)
}

// balancer creates a load balancer, or changes it. If an endpoint was replaced, or the load balancer is gone, it reads HNS and
// retries.
func (w *writer) balancer(ctx context.Context, k key, v value) error {
	had, has := w.state.balancers[k]
	if ids, _ := w.known(v.endpoints); has && had.same(v) && had.content() == v.content(ids) {
		return nil
	}
	err := w.put(ctx, k, v)
	if isGone(err) && w.bereft {
		err = w.renew(ctx, k, v)
	}
	if isGone(err) {
		if err := w.list(ctx); err != nil {
			return err
		}
		err = w.put(ctx, k, v)
	}
	if isGone(err) {
		err = w.renew(ctx, k, v)
		w.bereft = has && err == nil
	}
	if _, other := w.state.balancers[k.first()]; errors.Is(err, hns.ErrPortExists) && k.target != 0 && other {
		return errOneTarget
	}
	return err
}

// renew deletes a load balancer, which may be gone, and creates it.
func (w *writer) renew(ctx context.Context, k key, v value) error {
	if err := w.deleteBalancer(ctx, k); err != nil {
		return err
	}
	return w.put(ctx, k, v)
}

// put writes a load balancer, or deletes it if none of its backends exists in HNS: a container of this node has just
// ended, and its endpoint is still in the EndpointSlice.
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
	if len(ids) == 0 {
		return w.deleteBalancer(ctx, k)
	}
	if !has || !w.inPlace(had.id) {
		return w.replace(ctx, k, v, l)
	}
	before, now := had.content(), v.content(ids)
	if before != now {
		err = w.hns.ModifyLoadBalancer(ctx, l)
	}
	switch {
	case errors.Is(err, hns.ErrNotImplemented):
		w.remake = true
		w.failed(Failure{Op: "update", Family: k.family, Kind: string(v.kind), Reason: reasonOf(err)})
		w.opt.report("HNS cannot change load balancers in place, though its version should: from now on Sluice makes changed load balancers anew: " + err.Error())
		return w.replace(ctx, k, v, l)
	case err != nil:
		return err
	case before != now:
		w.noteSent(had.id, &before, now)
	}
	w.state.store(k, balancer{had.id, ids, v})
	return nil
}

// replace creates a load balancer. If there is one under its key, it creates the new one first if the backends have another
// port, as HNS may take both.
func (w *writer) replace(ctx context.Context, k key, v value, l hns.LoadBalancer) error {
	had, has := w.state.balancers[k]
	if has && had.target != v.target {
		err := w.create(ctx, k, v, l)
		if err == nil {
			return w.deleteID(ctx, had.id)
		}
		if !errors.Is(err, hns.ErrPortExists) {
			return err
		}
	}
	if err := w.deleteBalancer(ctx, k); err != nil {
		return err
	}
	return w.create(ctx, k, v, l)
}

func (w *writer) create(ctx context.Context, k key, v value, l hns.LoadBalancer) error {
	id, err := w.hns.CreateLoadBalancer(ctx, l)
	if err != nil {
		return err
	}
	w.noteSent(id, nil, v.content(l.Endpoints))
	w.state.store(k, balancer{id, l.Endpoints, v})
	return nil
}

// resolve returns the IDs of the backends of a load balancer. If one is missing, it reads the endpoints again, once per
// write. If it is still missing, complete adds it to the load balancer later.
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
	for a, users := range w.lacking {
		if delete(users, k); len(users) == 0 {
			delete(w.lacking, a)
		}
	}
}
