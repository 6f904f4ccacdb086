package iptables

import (
	"context"
	"errors"

	"github.com/sluice-proxy/sluice/internal/plane"
)

// PortalsKind returns a variant of this plane for planes that forward in the process. The routes
// that it gets have a listening socket of the process in place of the backends of each pool: a
// port of an address in Setup.Listeners. Its chains in table nat have the names of
// kube-proxy's mode userspace. Connections that were not translated cannot reach the listeners,
// as they would bypass the policy of the Services.
func PortalsKind() plane.Kind {
	k := Kind()
	k.Facts.Path, k.Excess, k.Open = PortalsPath, excessFrontends, openPortals
	return k
}

func openPortals(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
	if len(s.Listeners) == 0 {
		return nil, errors.New("the addresses of the listeners are not known")
	}
	return open(ctx, s)
}
