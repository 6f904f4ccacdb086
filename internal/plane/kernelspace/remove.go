package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// Remove deletes all load balancers in the network, and then the remote endpoints and the endpoint
// of the source VIP. If the network does not exist, or the options do not name one, it deletes the load balancers
// that refer to no existing endpoint. The error names the objects that HNS did not delete.
func (p *Plane) Remove(ctx context.Context) (removed []string, err error) {
	s, err := p.leftovers(ctx)
	var errs []error
	if errors.Is(err, errNode) { // the endpoints that name this node are not recognized then
		errs, p.opt.Node = append(errs, err), nil
		s, err = p.leftovers(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("read HNS: %w", err)
	}
	p.writer.state, p.fresh = s, false
	plan := p.ledger.Compare(p.writer, newListing(s, nil))
	plan.End()
	errs = append(errs, plan.Apply(ctx))
	for _, k := range slices.SortedFunc(maps.Keys(p.writer.unremoved), key.compare) {
		errs = append(errs, p.writer.unremoved[k])
	}
	return p.writer.deleted.lines(), errors.Join(errs...)
}

// leftovers reads the objects that Remove deletes.
func (p *Plane) leftovers(ctx context.Context) (*state, error) {
	if p.opt.Network != "" {
		s, err := p.read(ctx)
		if !errors.Is(err, hns.ErrNoNetwork) {
			return s, err
		}
	}
	s := &state{}
	var err error
	if s.features, err = p.hns.Features(ctx); err != nil || !s.features.V2 {
		return s, err
	}
	return s, p.objects(ctx, s)
}

// remains returns a line about load balancers that a clean-up keeps: their network is not named, or is another one.
func remains(ctx context.Context, h HNS, network string) []string {
	list, err := h.LoadBalancers(ctx)
	if err != nil || len(list) == 0 {
		return nil
	}
	count := text.Count(len(list), "load balancer")
	if network == "" {
		return []string{"HNS still has " + count + ": to remove those of an HNS network, " +
			"name it by --network-name, winkernel.networkName or the environment variable KUBE_NETWORK"}
	}
	if _, err := h.Network(ctx, network); errors.Is(err, hns.ErrNoNetwork) {
		return []string{
			fmt.Sprintf("HNS still has %s, and no network %q (--network-name): they refer to endpoints of other networks",
				count, network),
		}
	}
	return nil
}
