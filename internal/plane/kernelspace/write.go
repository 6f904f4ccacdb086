package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// errChanged means that what Refresh read is out of date.
var errChanged = errors.New("the network has changed")

// writer writes entries into HNS. It implements ledger.Writer. HNS has no transactions: after a refusal the ledger
// writes steps again, and those that are already carried out do nothing.
type writer struct {
	hns       HNS
	opt       Options
	state     *state          // nil before the first Refresh
	listed    bool            // the endpoints were read again by this write
	used      map[string]bool // the IDs of endpoints in load balancers, once this write has removed one
	deleted   deleted
	problems  *problems
	unremoved map[key]error // removals that failed and were reported
}

// deleted counts deleted objects.
type deleted struct{ balancers, endpoints int }

// lines returns a few words for each kind of objects.
func (d deleted) lines() (lines []string) {
	if d.balancers > 0 {
		lines = append(lines, text.Count(d.balancers, "load balancer"))
	}
	if d.endpoints > 0 {
		lines = append(lines, text.Count(d.endpoints, "endpoint"))
	}
	return lines
}

// Room implements ledger.Writer: all steps are written at once, as the removal of a load balancer may free its
// address and port for another one.
func (*writer) Room() int { return math.MaxInt32 }

// Size implements ledger.Writer.
func (*writer) Size(step) int { return 1 }

// Write implements ledger.Writer. If HNS refuses an object, it writes all others, and returns the first refusal. An
// object that cannot be deleted affects no Service: it is reported, and each comparison retries.
func (w *writer) Write(ctx context.Context, steps []*step) error {
	w.listed, w.used = false, nil
	var refused error
	for s := range w.withWaiting(steps) {
		if ctx.Err() != nil {
			return ctx.Err() // the calls of the library do not end with the context
		}
		err := w.step(ctx, s)
		if err == nil {
			continue
		}
		w.opt.failures.count(s, err)
		if general := w.general(ctx, err); general != nil {
			return general
		}
		switch {
		case s.Op == ledger.Remove:
			w.reportUnremoved(s.Key, err)
		case refused == nil:
			refused = &ledger.Refusal{Phase: s.Phase, Err: err}
		}
	}
	return refused
}

// withWaiting yields steps, and then the removals of endpoints that still wait.
func (w *writer) withWaiting(steps []*step) iter.Seq[*step] {
	return func(yield func(*step) bool) {
		for _, s := range steps {
			if !yield(s) {
				return
			}
		}
		for _, k := range slices.SortedFunc(maps.Keys(w.state.waiting), key.compare) {
			if !yield(&step{Op: ledger.Remove, Key: k}) {
				return
			}
		}
	}
}

// general returns an error that concerns more than one object: the state is out of date, or HNS does not
// answer. It returns nil if HNS only refuses one object.
func (w *writer) general(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if w.state.network.ID == "" {
		return nil // Remove without the network
	}
	now, readErr := w.hns.Network(ctx, w.opt.Network)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	if now.ID != w.state.network.ID {
		return errors.Join(err, errChanged)
	}
	return nil
}

// reportUnremoved reports an object that could not be deleted, once.
func (w *writer) reportUnremoved(k key, err error) {
	if w.unremoved[k] == nil {
		w.unremoved[k] = err
		w.problems.ofNetwork("cannot delete an object that no Service needs; Sluice retries periodically: " + err.Error())
	}
}

func (w *writer) step(ctx context.Context, s *step) error {
	switch {
	case s.Key.class.balancer() && s.Op == ledger.Remove:
		return w.deleteBalancer(ctx, s.Key)
	case s.Key.class.balancer():
		err := w.balancer(ctx, s.Key, s.New)
		if isGone(err) && !w.listed { // perhaps the container of a backend has just ended
			if err := w.list(ctx); err != nil {
				return err
			}
			err = w.balancer(ctx, s.Key, s.New)
		}
		return err
	case s.Op == ledger.Remove:
		return w.deleteEndpoint(ctx, s.Key)
	}
	return w.createEndpoint(ctx, s.Key)
}

// isGone reports whether an error means that an object of a call does not exist. The error of a missing network does
// not mean that.
func isGone(err error) bool {
	return errors.Is(err, hns.ErrNotFound) && !errors.Is(err, hns.ErrNoNetwork)
}

// balancer creates a load balancer, or changes it, in place if HNS can. If none of its backends exists in HNS it is
// deleted: a container of this node has just ended, and its endpoint is still in the EndpointSlice.
func (w *writer) balancer(ctx context.Context, k key, v value) error {
	l, err := w.resolve(ctx, k, v)
	if err != nil {
		return err
	}
	had, has := w.state.balancers[k]
	l.ID = had.ID
	if has && had.Same(l) {
		return nil
	}
	if has && len(l.Endpoints) > 0 && w.state.features.Modify {
		had.Other = true // until HNS confirms the change: the next comparison replaces it otherwise
		w.state.balancers[k] = had
		if err := w.hns.ModifyLoadBalancer(ctx, l); err != nil {
			return err
		}
		w.state.balancers[k] = l
		return nil
	}
	if err := w.deleteBalancer(ctx, k); err != nil || len(l.Endpoints) == 0 {
		return err
	}
	if l.ID, err = w.hns.CreateLoadBalancer(ctx, l); err != nil {
		return err
	}
	w.state.balancers[k] = l
	return nil
}

// resolve returns the document of a load balancer. If the endpoint of a backend is missing, such as that of a new
// container, it reads the endpoints again, once per write.
func (w *writer) resolve(ctx context.Context, k key, v value) (hns.LoadBalancer, error) {
	l, missing := w.state.document(k, v)
	if len(missing) == 0 || w.listed {
		return l, nil
	}
	if err := w.list(ctx); err != nil {
		return l, err
	}
	l, _ = w.state.document(k, v)
	return l, nil
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

// deleteBalancer deletes a load balancer, if there is one.
func (w *writer) deleteBalancer(ctx context.Context, k key) error {
	l, has := w.state.balancers[k]
	if !has {
		return nil
	}
	if err := w.hns.DeleteLoadBalancer(ctx, l.ID); err != nil && !isGone(err) {
		return err
	}
	delete(w.state.balancers, k)
	w.deleted.balancers++
	return nil
}

// createEndpoint creates an endpoint unless the address has one.
func (w *writer) createEndpoint(ctx context.Context, k key) error {
	delete(w.state.waiting, k)
	found, has := w.state.endpoints[k.addr]
	if c, ours := w.state.class(found); has && (c == k.class || k.class == remote || !ours) {
		return nil
	}
	e := hns.Endpoint{
		Network: w.state.network.ID, Addrs: []netip.Addr{k.addr}, Remote: k.class != source, MAC: w.state.hostMAC,
		Provider: w.state.node(k.class, k.addr),
	}
	switch k.class {
	case source:
		e.Name = sourceName
	case remote:
		e.MAC = hns.MAC(k.addr)
	default:
	}
	id, err := w.hns.CreateEndpoint(ctx, e)
	if err != nil {
		return err
	}
	e.ID = id
	w.state.endpoints[k.addr] = e
	return nil
}

// deleteEndpoint deletes an endpoint of this plane that no Service needs. It waits while a load balancer refers to
// the endpoint, such as one of a refused Service.
func (w *writer) deleteEndpoint(ctx context.Context, k key) error {
	e, has := w.state.endpoints[k.addr]
	if k.id != "" {
		e, has = w.state.unfit[k.id]
	}
	delete(w.state.waiting, k)
	if c, ours := w.state.class(e); !has || k.id == "" && (c != k.class || !ours) {
		return nil // a backend may have the address of a clusterIP, of the source VIP, or of a container
	}
	if k.id == "" && w.inUse(e.ID) {
		w.state.waiting[k] = true
		return nil
	}
	if err := w.hns.DeleteEndpoint(ctx, e.ID); err != nil && !isGone(err) {
		return err
	}
	w.deleted.endpoints++
	if w.state.endpoints[k.addr].ID == e.ID {
		delete(w.state.endpoints, k.addr)
	}
	delete(w.state.unfit, e.ID)
	return nil
}

// inUse reports whether a load balancer refers to an endpoint. It is called after load balancers are written.
func (w *writer) inUse(id string) bool {
	if w.used == nil {
		w.used = map[string]bool{}
		for _, l := range w.state.balancers {
			for _, id := range l.Endpoints {
				w.used[id] = true
			}
		}
	}
	return w.used[id]
}

// Print implements ledger.Writer.
func (w *writer) Print(steps []*step) string {
	var b strings.Builder
	for _, s := range steps {
		op := [...]string{"add", "change", "empty", "remove"}[s.Op]
		if !s.Key.class.balancer() {
			fmt.Fprintf(&b, "%s endpoint %s", op, s.Key.addr)
			if node := w.state.node(s.Key.class, s.Key.addr); s.Op == ledger.Add && node.IsValid() {
				fmt.Fprintf(&b, " at node %s", node)
			}
			b.WriteByte('\n')
			continue
		}
		v := s.New
		if s.Op == ledger.Remove {
			v = s.Old
		}
		l, _ := w.state.document(s.Key, value{target: v.target, source: v.source, flags: v.flags})
		fmt.Fprintf(&b, "%s load balancer %s: %s\n", op, l, v.endpoints)
	}
	return b.String()
}
