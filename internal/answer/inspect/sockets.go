package inspect

import (
	"context"
	"errors"
	"iter"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Address is where the process listens for a port of a Service.
type Address struct {
	Namespace string         `json:"namespace"`
	Service   string         `json:"service"`
	Port      string         `json:"port,omitempty"` // its name
	Protocol  string         `json:"protocol"`
	Pool      string         `json:"pool"` // to which backends: "cluster", "local"
	Address   netip.AddrPort `json:"address"`
	Open      int64          `json:"openConnections"` // of the port
}

// errNoSockets is the answer in modes that open no sockets.
var errNoSockets = errors.New("in this mode the proxy opens no sockets for Services; " +
	"sluice get services lists their addresses")

// Addresses lists the sockets of the Services that a filter matches, sorted by Service.
func (i *Inspector) Addresses(_ context.Context, f Filter) (iter.Seq[Address], error) {
	if i.opt.Sockets == nil {
		return nil, errNoSockets
	}
	all := i.opt.Sockets()
	return route.Yielding(func(yield func(Address) bool) {
		for _, s := range all {
			if !f.matches(s.Service) {
				continue
			}
			a := Address{s.Service.Namespace, s.Service.Name, s.Port, s.Protocol.String(), s.Pool.String(), s.At, s.Open}
			if !yield(a) {
				return
			}
		}
	}), nil
}
