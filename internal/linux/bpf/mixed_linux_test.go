package bpf

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A socket that sends to two Services with the same backend gets no reply of one in the name of the other.
func TestServicesWithTheSameBackend(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:53")
	n.write(slices.Concat(service(dns4, 17, OfNode, "127.0.0.1:53"), service(other4, 17, OfNode, "127.0.0.1:53"))...)
	n.with(unix.AF_INET, func(s *socket) error {
		for _, to := range []string{dns4, other4, dns4, other4} {
			_, from, err := s.ask(to)
			if err == nil && from != to {
				return fmt.Errorf("the reply of %s seems to come from %s", to, from)
			}
			if err != nil && to == dns4 {
				return err
			}
		}
		return nil
	})
}

// A datagram whose source its program chooses is for packets, as those of bound sockets are.
func TestChosenSource(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:53")
	serve(t, n.opt.NetNS, "[::1]:53")
	n.write(slices.Concat(service(dns4, 17, OfNode, "127.0.0.1:53"), service(dns6, 17, OfNode, "[::1]:53"))...)
	from4 := unix.Inet4Pktinfo{Spec_dst: [4]byte{127, 0, 0, 9}}
	from6 := unix.Inet6Pktinfo{Addr: netip.IPv6Loopback().As16()}
	for _, c := range []struct {
		family  int
		to      string
		control []byte
	}{{unix.AF_INET, dns4, unix.PktInfo4(&from4)}, {unix.AF_INET6, dns6, unix.PktInfo6(&from6)}} {
		n.with(c.family, func(s *socket) error {
			if err := unix.Sendmsg(s.fd, []byte("?"), c.control, s.address(c.to), 0); err != nil {
				return nil //nolint:nilerr // no route to the Service: it is for packets
			}
			if _, from, err := s.receive(); err == nil {
				return fmt.Errorf("%s answers a datagram with a chosen source", from)
			}
			return nil
		})
	}
}

// A TCP socket that was connected through a Service, and is connected to the backend directly now, is not a socket of
// the Service.
func TestTCPConnectsAgainDirectly(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	n.write(service(vip, 6, OfNode, "127.0.0.1:8080")...)
	n.run(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		s := &socket{fd, unix.AF_INET}
		defer s.close()
		if err := s.connect(vip); err != nil {
			return err
		}
		if err := s.disconnect(); err != nil {
			return err
		}
		if err := s.connect("127.0.0.1:8080"); err != nil {
			return err
		}
		sa, err := unix.Getpeername(fd)
		if err == nil && text(sa) != "127.0.0.1:8080" {
			t.Errorf("the peer seems to be %s", text(sa))
		}
		return err
	})
}
