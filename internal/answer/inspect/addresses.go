package inspect

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/sluice-proxy/sluice/internal/plane"
)

var errNoSockets = errors.New("in this mode the proxy opens no sockets for Services; " +
	"sluice get services lists their addresses")

// Addresses lists the sockets of the Services that a filter matches, sorted by Service.
func (i *Inspector) Addresses(_ context.Context, f Filter) (iter.Seq[Address], error) {
	if i.opt.Opened.Sockets == nil {
		return nil, errNoSockets
	}
	all := slices.DeleteFunc(i.opt.Opened.Sockets(), func(s plane.Socket) bool { return !f.matches(s.Service) })
	return each(all, func(s plane.Socket) Address {
		return Address{s.Service.Namespace, s.Service.Name, s.Port, s.Protocol.String(), s.Pool.String(), s.At, s.Open}
	}), nil
}
