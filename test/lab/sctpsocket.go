//go:build linux

package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// SCTP by sockets of the kernel, for proxies that terminate associations: the lab's own
// implementation (sctp.go) does not retransmit, and its peers must not have one in the kernel.

// backlog is how many associations may wait to be accepted.
const backlog = 128

// serveSCTPSockets serves the host's own addresses one by one, so that each association has a
// single local address.
func (h *Host) serveSCTPSockets(family string, port uint16, s *Server) error {
	for _, a := range h.addrs {
		if a.Is4() != (family == "4") {
			continue
		}
		l, err := h.listenSCTP(netip.AddrPortFrom(a, port))
		if err != nil {
			return err
		}
		s.accept(l)
	}
	return nil
}

// listenSCTP listens with a one-to-one style socket (RFC 6458, section 4), whose system calls are those
// of TCP.
func (h *Host) listenSCTP(at netip.AddrPort) (net.Listener, error) {
	domain := unix.AF_INET
	if at.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd := -1
	err := h.do(func() error {
		var err error
		fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open SCTP socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), "sctp")
	defer func() { _ = file.Close() }() // the listener has a copy
	if err := unix.Bind(fd, Sockaddr(at)); err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return net.FileListener(file)
}

// watchICMP opens the raw socket that receives the ICMP errors of an association, which its own
// socket reports without their details, or not at all.
func (s *socket) watchICMP(h *Host, p Probe) error {
	domain := unix.AF_INET
	if p.To.Addr().Is6() {
		domain = unix.AF_INET6
	}
	watch := &socket{raw: true, mine: (&association{local: p.From.Port(), remote: p.To.Port()}).quotedIn}
	err := h.do(func() error {
		var err error
		watch.fd, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
		return err
	})
	if err != nil {
		return fmt.Errorf("open raw socket: %w", err)
	}
	s.watch = watch
	if err := watch.prepare(h.source(p), p); err != nil {
		return err
	}
	if err := unix.Connect(watch.fd, Sockaddr(netip.AddrPortFrom(p.To.Addr(), 0))); err != nil {
		return fmt.Errorf("connect raw socket to %s: %w", p.To.Addr(), err)
	}
	return nil
}
