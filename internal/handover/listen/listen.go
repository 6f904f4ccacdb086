// Package listen opens TCP ports, in this or another network namespace.
package listen

import (
	"context"
	"net"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Opener opens ports in one network namespace.
type Opener struct {
	NetNS int // file descriptor of the network namespace; 0: the current one
}

// Listen opens a TCP port. Network is "tcp4" or "tcp6" for one family; with "tcp" both
// 0.0.0.0 and [::] mean all addresses of both families, as in net.Listen and kube-proxy.
// The listener stays in its namespace after the descriptor is closed.
func (d Opener) Listen(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error) {
	var l net.Listener
	err := netns.Do(d.NetNS, func() (err error) {
		l, err = config().Listen(ctx, network, at.String())
		return err
	})
	return l, err
}

// Dial connects to a numeric address and port.
func (d Opener) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var c net.Conn
	err := netns.Do(d.NetNS, func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// config switches multipath TCP off, which the net package switches on: it costs a second socket for each listener.
func config() *net.ListenConfig {
	lc := &net.ListenConfig{}
	lc.SetMultipathTCP(false)
	return lc
}
