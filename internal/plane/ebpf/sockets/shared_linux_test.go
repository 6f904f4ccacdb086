package sockets

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/route"
)

// sharing opens UDP sockets with the same port, and connects them in the opposite order.
func (s *stage) sharing(n int) (list []*client) {
	s.t.Helper()
	err := s.node(func() error {
		for i := range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			s.t.Cleanup(func() { _ = unix.Close(fd) }) // nothing is lost
			list = append(list, &client{name: fmt.Sprint("sharing ", i), in: s.node, fd: fd, to: services[route.IPv4]})
			err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
				unix.Bind(fd, &unix.SockaddrInet4{Port: 4000}))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range slices.Backward(list) {
		if err := c.connect(); err != nil {
			s.t.Fatal(err)
		}
	}
	return list
}

// Sockets with the same addresses and ports are all destroyed, although the kernel finds one of them at a time.
func TestUDPSocketsThatShareAPort(t *testing.T) {
	s := newStage(t)
	first, second := lists("127.0.0.1:53", "[::1]:53"), lists("127.0.0.2:53", "[::1]:54")
	was, is := service(first), service(second)
	s.write(was)
	s.follow.Applied(route.Change{Touched: []route.Touch{{Name: was.Name, New: was}}})
	list := s.sharing(4)
	s.want(list, nil)
	s.write(is)
	s.follow.Applied(route.Change{Touched: []route.Touch{{Name: was.Name, Old: was, New: is}}})
	s.want(list, unix.ECONNABORTED)
}
