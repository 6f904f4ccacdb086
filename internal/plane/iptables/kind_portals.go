package iptables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/follow/netfilter"
	"github.com/sluice-proxy/sluice/internal/kernel/divert"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// PortalsKind returns a variant of this plane for planes that forward in the process. The routes
// that it gets have a listening socket of the process in place of the backends of each pool: a
// port of an address in Setup.Listeners. Its chains in table nat have the names of
// kube-proxy's mode userspace. Connections that were not translated cannot reach the listeners,
// as they would bypass the policy of the Services.
func PortalsKind() plane.Kind {
	k := Kind()
	k.Facts.Path, k.Excess, k.Open = PortalsPath, excessFrontends, openPortals
	k.Remove = func(_ context.Context, s plane.Setup) ([]string, error) { // the take-over removes the chains
		n, err := divert.New(s.NetNS).Remove()
		if n == 0 {
			return nil, err
		}
		return []string{text.Count(n, "routing rule or route") + " for replies to addresses of clients"}, err
	}
	k.Cleanup = func(ctx context.Context, s plane.Setup) ([]string, error) {
		removed, err := k.Remove(ctx, s)
		lines, cleanErr := netfilter.Cleanup(ctx, s)
		return append(removed, lines...), errors.Join(err, cleanErr)
	}
	return k
}

func openPortals(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
	if len(s.Listeners) == 0 {
		return nil, errors.New("the addresses of the listeners are not known")
	}
	if s.Transparent { // or each write would fail
		if _, err := probe.Iptables(ctx, probe.Options{NetNS: s.NetNS, Transparent: true}); err != nil {
			return nil, fmt.Errorf("--transparent: %w", err)
		}
	}
	opened, err := open(ctx, s)
	if err == nil {
		opened.Parts = append(opened.Parts, plane.Part{Run: func(ctx context.Context) error { return routeReplies(ctx, s) }})
	}
	return opened, err
}

// routePeriod is how often missing routing rules are added: programs that manage the network
// delete those of others.
const routePeriod = 10 * time.Second

// routeReplies keeps the routing of replies as Setup.Transparent needs it, until the context ends.
func routeReplies(ctx context.Context, s plane.Setup) error {
	route := routing(s)
	ticker := time.NewTicker(routePeriod)
	defer ticker.Stop()
	for last := ""; ctx.Err() == nil; {
		now := ""
		if err := route(); err != nil {
			now = err.Error()
		}
		if now != "" && now != last {
			s.Log.Warn("Cannot route the replies of backends to addresses of clients, retrying", "error", now)
		}
		last = now
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return nil
}

// routing returns a function that adds or removes the routing of replies.
func routing(s plane.Setup) func() error {
	d, mark := divert.New(s.NetNS), options(s).Transparent
	if mark == 0 {
		return func() error {
			_, err := d.Remove()
			return err
		}
	}
	var list []divert.Family
	for _, f := range s.Families {
		list = append(list, map[route.Family]divert.Family{route.IPv4: divert.IPv4, route.IPv6: divert.IPv6}[f])
	}
	return func() error { return d.Ensure(mark, list...) }
}
