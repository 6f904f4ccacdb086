package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

var (
	// errOneTarget is returned if HNS refuses a second load balancer for an address and port.
	errOneTarget = errors.New("HNS takes one load balancer for each address and port")

	// errChanged means that what Refresh read is out of date.
	errChanged = errors.New("the network has changed")

	// errGeneral marks an error that concerns more than one object.
	errGeneral = errors.New("nothing more can be written")
)

// writer writes entries into HNS. It implements ledger.Writer. HNS has no transactions: after a refusal the ledger
// writes all steps again, and those that are already carried out do nothing.
type writer struct {
	hns       HNS
	opt       Options
	state     *state          // nil before the first Refresh
	listed    bool            // the endpoints were read again by this write
	bereft    bool            // this write has found that another program deletes load balancers
	sent      map[string]sent // by ID
	forms     forms
	anew      map[string]bool // load balancers whose changes in place HNS applies only in part, by ID
	remake    bool            // HNS changes no load balancer in place
	unremoved map[key]error   // removals that failed and were reported

	lacking lacking
}

// lacking holds the load balancers that were written without an endpoint that did not exist, by the address of the endpoint.
type lacking map[netip.Addr]map[key]value

// Room implements ledger.Writer: all steps are written at once, as the removal of a load balancer may free its address and port for
// another one.
func (*writer) Room() int { return math.MaxInt32 }

// Size implements ledger.Writer.
func (*writer) Size(step) int { return 1 }

// Write implements ledger.Writer.
func (w *writer) Write(ctx context.Context, steps []*step) error {
	w.listed, w.bereft = false, false
	for _, s := range order(steps) {
		if ctx.Err() != nil {
			return ctx.Err() // the calls of the library do not end with the context
		}
		err := w.step(ctx, s)
		if err == nil {
			continue
		}
		if general := w.general(ctx, err); general != nil {
			return general
		}
		if s.Op == ledger.Remove {
			w.reportUnremoved(s, err)
			continue
		}
		return &ledger.Refusal{Phase: s.Phase, Err: err}
	}
	return nil
}

// order returns steps in the order in which they are written: that of their phases, except that a load balancer is removed
// just before another one is written at its address, protocol and port.
func order(steps []*step) []*step {
	isRemoval := func(s *step) bool { return s.Key.class.balancer() && s.Op == ledger.Remove }
	going := map[key][]*step{}
	for _, s := range steps {
		if isRemoval(s) {
			going[s.Key.place()] = append(going[s.Key.place()], s)
		}
	}
	list := make([]*step, 0, len(steps))
	for _, s := range steps {
		if s.Key.class.balancer() {
			list = append(list, going[s.Key.place()]...)
			delete(going, s.Key.place())
		}
		if !isRemoval(s) {
			list = append(list, s)
		}
	}
	return list
}

// general returns an error that concerns more than one object: the state is out of date, or HNS does not
// answer. It returns nil if HNS only refuses one object.
func (w *writer) general(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, errOneTarget) || errors.Is(err, errChanged) || errors.Is(err, errGeneral) {
		return err
	}
	if errors.Is(err, hns.ErrPortExists) {
		return nil
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

// reportUnremoved reports an object that could not be deleted, once. The write goes on, and each comparison
// retries.
func (w *writer) reportUnremoved(s *step, err error) {
	if w.unremoved[s.Key] == nil {
		w.unremoved[s.Key] = err
		w.opt.report("cannot delete an object that no Service needs; Sluice retries periodically: " + err.Error())
	}
}

func (w *writer) step(ctx context.Context, s *step) error {
	err := w.carryOut(ctx, s)
	if err != nil && s.Key.class.balancer() && !errors.Is(err, errOneTarget) {
		w.failed(failureOf(s, err))
	}
	return err
}

func (w *writer) failed(f Failure) {
	if w.opt.Failed != nil {
		w.opt.Failed(f)
	}
}

func (w *writer) carryOut(ctx context.Context, s *step) error {
	switch {
	case s.Key.class.balancer() && s.Op != ledger.Remove:
		if w.taken(s.Key) {
			return nil
		}
		w.forget(s.Key.stored())
		return w.balancer(ctx, s.Key.stored(), s.New)
	case s.Key.class.balancer():
		return w.removeBalancer(ctx, s.Key)
	case s.Op == ledger.Remove:
		return w.deleteEndpoint(ctx, s.Key)
	}
	return w.endpoint(ctx, s)
}

// endpoint creates an endpoint unless it exists. For a change it replaces the endpoint, and also if the address needs one of another class.
func (w *writer) endpoint(ctx context.Context, s *step) error {
	e := w.endpointOf(s)
	found, has := w.state.endpoints[s.Key.addr]
	same := found.Provider == e.Provider && sameMAC(found.MAC, e.MAC)
	if has && !w.state.misfit(s.Key, found) && (s.Op != ledger.Change || same || !w.state.owned(found)) {
		return w.complete(ctx, s.Key.addr)
	}
	if err := w.recent(ctx, s.Key); err != nil {
		return err
	}
	if has {
		if err := w.retire(ctx, found); err != nil {
			return w.keep(ctx, s, err)
		}
		delete(w.unremoved, s.Key)
	}
	id, err := w.hns.CreateEndpoint(ctx, e)
	if err != nil {
		return err
	}
	e.ID = id
	w.state.endpoints[s.Key.addr] = e
	return w.complete(ctx, s.Key.addr)
}

// endpointOf returns the endpoint that a step writes.
func (w *writer) endpointOf(s *step) hns.Endpoint {
	e := hns.Endpoint{Network: w.state.network.ID, Addrs: []netip.Addr{s.Key.addr}}
	switch s.Key.class {
	case source:
		e.Name, e.MAC = sourceName, w.state.hostMAC
	case vip:
		e.Remote, e.MAC, e.Provider = true, w.state.hostMAC, s.New.provider
	default:
		e.Remote, e.MAC, e.Provider = true, hns.MAC(s.Key.addr), s.New.provider
	}
	return e
}

// recent verifies that no remote subnet of another node was added since Refresh, before an endpoint in
// none of them is created: its node may have joined the cluster a moment ago.
func (w *writer) recent(ctx context.Context, k key) error {
	if k.class != remote || !w.state.overlay() || w.state.provider(k.addr).IsValid() {
		return nil
	}
	now, err := w.hns.Network(ctx, w.opt.Network)
	if err != nil {
		return err
	}
	if now.ID != w.state.network.ID || !slices.Equal(now.Remote, w.state.network.Remote) {
		return fmt.Errorf("the remote subnets of network %s: %w", w.opt.Network, errChanged)
	}
	return nil
}

// retire deletes an endpoint that will be replaced. Meanwhile its load balancers do not contain it.
func (w *writer) retire(ctx context.Context, e hns.Endpoint) error {
	a := e.Addrs[0]
	delete(w.state.endpoints, a)
	w.listed = true // HNS still has it
	for k, v := range w.users(a) {
		if err := w.balancer(ctx, k, v); err != nil {
			w.state.endpoints[a] = e
			return err
		}
	}
	err := w.hns.DeleteEndpoint(ctx, e.ID)
	if err != nil && !isGone(err) {
		w.state.endpoints[a] = e
		return err
	}
	return nil
}

// keep continues with an endpoint that could not be replaced, and reports that once: it affects no other object. Each comparison retries.
func (w *writer) keep(ctx context.Context, s *step, err error) error {
	if general := w.general(ctx, err); general != nil {
		return fmt.Errorf("%w: %w", errGeneral, general) // HNS may answer again by now, but the state is out of date
	}
	if w.unremoved[s.Key] == nil {
		w.unremoved[s.Key] = err
		w.opt.report(fmt.Sprintf("cannot replace the endpoint %s, which stays as it was; Sluice retries periodically: %s", s.Key.addr, err))
	}
	return w.complete(ctx, s.Key.addr)
}

// users returns the load balancers with an address among their backends.
func (w *writer) users(a netip.Addr) map[key]value {
	users := map[key]value{}
	for k, b := range w.state.balancers {
		if slices.Contains(strings.Fields(b.endpoints), a.String()) {
			users[k] = b.value
		}
	}
	return users
}

// deleteEndpoint deletes an endpoint of this plane that no Service needs. If a container of this host has its address now, load
// balancers that refer to it get the endpoint of the container. An endpoint stays while a load balancer refers to it, such as one
// of a refused Service; the next comparison tries again.
func (w *writer) deleteEndpoint(ctx context.Context, k key) error {
	e, has := w.state.endpoints[k.addr]
	if k.id != "" {
		e, has = w.state.hidden[k.id]
	}
	class, _ := w.state.class(e)
	if !has || !w.state.owned(e) || k.id == "" && class != k.class {
		return nil // a backend may have the address of a clusterIP or of the source VIP
	}
	if err := w.release(ctx, k.addr, e.ID); err != nil {
		return err
	}
	if w.state.uses[e.ID] > 0 {
		return nil
	}
	if err := w.hns.DeleteEndpoint(ctx, e.ID); err != nil && !isGone(err) {
		return err
	}
	if w.state.endpoints[k.addr].ID == e.ID {
		delete(w.state.endpoints, k.addr)
	}
	delete(w.state.hidden, e.ID)
	delete(w.unremoved, k)
	return nil
}

// release makes the load balancers that refer to an endpoint refer to another one with the same address. It reads the endpoints again,
// once per write.
func (w *writer) release(ctx context.Context, a netip.Addr, id string) error {
	if w.state.uses[id] == 0 {
		return nil // there may be very many load balancers
	}
	users := w.users(a)
	maps.DeleteFunc(users, func(k key, _ value) bool { return !slices.Contains(w.state.balancers[k].ids, id) })
	if len(users) == 0 {
		return nil
	}
	if !w.listed {
		if err := w.list(ctx); err != nil {
			return err
		}
	}
	for k, v := range users {
		if err := w.balancer(ctx, k, v); err != nil {
			return err
		}
	}
	return nil
}

// Print implements ledger.Writer.
func (w *writer) Print(steps []*step) string {
	var b strings.Builder
	for _, s := range order(steps) {
		op := [...]string{"add", "change", "empty", "remove"}[s.Op]
		if !s.Key.class.balancer() {
			fmt.Fprintf(&b, "%s endpoint %s", op, s.Key.addr)
			if s.New.provider.IsValid() {
				fmt.Fprintf(&b, " at node %s", s.New.provider)
			}
			b.WriteByte('\n')
			continue
		}
		v := s.New
		if s.Op == ledger.Remove {
			v = s.Old
		}
		l := hns.LoadBalancer{VIP: s.Key.addr, Protocol: s.Key.protocol, Port: s.Key.port, Target: v.target, SourceVIP: v.source, Flags: v.flags}
		fmt.Fprintf(&b, "%s load balancer %s: %s%s\n", op, l, v.endpoints, s.Key.id)
	}
	return b.String()
}
