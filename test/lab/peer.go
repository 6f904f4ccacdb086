//go:build linux

package lab

import (
	"net"
	"net/netip"
	"time"
)

// PeerInKernel connects by TCP from a thread that runs functions (Inside), in the network namespace of the host, and
// reports whether the socket is connected to the address itself, as without a program that balances sockets.
func (h *Host) PeerInKernel(run func(func() error) error, to netip.AddrPort) (itself bool, err error) {
	h.t.Helper()
	err = run(func() error {
		c, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
		if err != nil {
			return err
		}
		itself = h.MustRun("ss", "-Htn", "dst", to.String()) != "" // of the kernel: getpeername is the program's
		return c.Close()
	})
	return itself, err
}
