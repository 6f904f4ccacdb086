package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// errOneTarget is the error of a write of a second load balancer for an address and port.
var errOneTarget = errors.New("HNS takes one load balancer for each address and port")

// writer writes entries into HNS. It implements ledger.Writer. HNS has no transactions: steps that
// are carried out already do nothing when they are written again after a refusal.
type writer struct {
	hns    HNS
	opt    Options
	state  *state // nil before the first Refresh
	listed bool   // the endpoints were read again by this write
}

// Room implements ledger.Writer: all steps are written in the order of their phases, as a load
// balancer that goes may make room for another one.
func (*writer) Room() int { return math.MaxInt32 }

// Size implements ledger.Writer.
func (*writer) Size(step) int { return 1 }

// Write implements ledger.Writer.
func (w *writer) Write(ctx context.Context, steps []*step) error {
	w.listed = false
	for _, s := range steps {
		err := w.step(ctx, s)
		switch {
		case err == nil:
		case ctx.Err() != nil || !refused(err):
			return err
		default:
			return &ledger.Refusal{Phase: s.Phase, Err: err}
		}
	}
	return nil
}

// refused reports whether HNS did not accept one object, and others may be accepted.
func refused(err error) bool { return errors.Is(err, hns.ErrPortExists) }

func (w *writer) step(ctx context.Context, s *step) error {
	switch {
	case s.Key.class == frontend && s.Op != ledger.Remove:
		return w.balancer(ctx, s.Key, s.New)
	case s.Key.class == frontend || s.Key.class == unknown:
		return w.deleteBalancer(ctx, s.Key)
	case s.Op == ledger.Remove:
		return w.deleteEndpoint(ctx, s.Key)
	}
	return w.endpoint(ctx, s.Key)
}

// endpoint creates an endpoint unless there is one.
func (w *writer) endpoint(ctx context.Context, k key) error {
	if _, has := w.state.endpoints[k.addr]; has {
		return nil
	}
	e := hns.Endpoint{Network: w.state.network.ID, Addrs: []netip.Addr{k.addr}}
	if k.class == source {
		e.Name = sourceName
	} else {
		e.Remote, e.MAC, e.Provider = true, hns.MAC(k.addr), w.provider(k.addr)
	}
	var err error
	if e.ID, err = w.hns.CreateEndpoint(ctx, e); err != nil {
		return err
	}
	w.state.endpoints[k.addr] = e
	return nil
}

// provider returns the address of the node that has an endpoint of an overlay network.
func (w *writer) provider(a netip.Addr) netip.Addr {
	if !w.state.network.Type.Is(hns.Overlay) {
		return netip.Addr{}
	}
	for _, r := range w.state.network.Remote {
		if r.Prefix.Contains(a) || r.Provider == a {
			return r.Provider
		}
	}
	return w.opt.NodeIP
}

func (w *writer) deleteEndpoint(ctx context.Context, k key) error {
	e, has := w.state.endpoints[k.addr]
	if !has || !ours(e) || w.state.kept[e.ID] {
		return nil
	}
	if err := w.hns.DeleteEndpoint(ctx, e.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
		return err
	}
	delete(w.state.endpoints, k.addr)
	return nil
}

func (w *writer) deleteBalancer(ctx context.Context, k key) error {
	b, has := w.state.balancers[k]
	if !has {
		return nil
	}
	if err := w.hns.DeleteLoadBalancer(ctx, b.id); err != nil && !errors.Is(err, hns.ErrNotFound) {
		return err
	}
	delete(w.state.balancers, k)
	return nil
}

// balancer creates a load balancer, or changes it. One whose backends HNS does not have is deleted:
// a container of this node has just ended, and the cluster does not know it yet.
func (w *writer) balancer(ctx context.Context, k key, v value) error {
	had, has := w.state.balancers[k]
	if has && had.value == v {
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

// Print implements ledger.Writer.
func (w *writer) Print(steps []*step) string {
	var b strings.Builder
	for _, s := range steps {
		op := [...]string{"add", "change", "empty", "remove"}[s.Op]
		switch s.Key.class {
		case source, remote:
			fmt.Fprintf(&b, "%s endpoint %s %s\n", op, s.Key.addr, hns.MAC(s.Key.addr))
		default:
			v := s.New
			if s.Op == ledger.Remove {
				v = s.Old
			}
			l := hns.LoadBalancer{VIP: s.Key.addr, Protocol: s.Key.protocol, Port: s.Key.port, Target: v.target, SourceVIP: v.source, Flags: v.flags}
			fmt.Fprintf(&b, "%s load balancer %s: %s%s\n", op, l, v.endpoints, s.Key.id)
		}
	}
	return b.String()
}
