// Package listen opens TCP ports, also in another network namespace than the
// own one.
package listen

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"
)

// Door opens ports in one network namespace.
type Door struct {
	NetNS int // file descriptor of the network namespace; 0: the current one
}

// Listen opens a TCP port. Network is "tcp4" or "tcp6" for one family; with
// "tcp" both 0.0.0.0 and [::] stand for every address of both, as in net.Listen
// and so in kube-proxy. The listener stays in its namespace whatever happens to
// the descriptor.
func (d Door) Listen(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error) {
	var l net.Listener
	err := d.within(func() (err error) {
		l, err = config().Listen(ctx, network, at.String())
		return err
	})
	return l, err
}

// Dial connects to an address and port, given as numbers.
func (d Door) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var c net.Conn
	err := d.within(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// config is for many small listeners: multipath TCP, which the net package has
// on, costs a second socket for each.
func config() *net.ListenConfig {
	lc := &net.ListenConfig{}
	lc.SetMultipathTCP(false)
	return lc
}

// within runs fn in the namespace: a socket belongs to that of the thread that
// makes it.
func (d Door) within(fn func() error) error {
	if d.NetNS == 0 {
		return fn()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(d.NetNS, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}
