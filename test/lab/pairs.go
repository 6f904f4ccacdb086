//go:build linux

package lab

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Pairs sends n pairs of datagrams, each pair from a socket of its own and by two threads at the same time, as
// resolvers ask for A and AAAA. It returns how many datagrams have no answer after a while.
func (h *Host) Pairs(n int, to netip.AddrPort, wait time.Duration) (lost int, err error) {
	return lost, h.asClient(func() error {
		sockets, err := connectedUDP(n, to)
		defer func() {
			for _, fd := range sockets {
				_ = unix.Close(fd) // it was only read from
			}
		}()
		if err == nil {
			err = sendPairs(sockets)
		}
		if err == nil {
			lost = unanswered(sockets, time.Now().Add(wait))
		}
		return err
	})
}

func connectedUDP(n int, to netip.AddrPort) (sockets []int, err error) {
	family, addr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port())})
	if to.Addr().Is6() {
		family, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	} else {
		addr.(*unix.SockaddrInet4).Addr = to.Addr().As4()
	}
	for range n {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return sockets, fmt.Errorf("open a socket: %w", err)
		}
		sockets = append(sockets, fd)
		if err := unix.Connect(fd, addr); err != nil {
			return sockets, fmt.Errorf("connect to %s: %w", to, err)
		}
	}
	return sockets, nil
}

// sendPairs sends two datagrams on each socket. The threads wait for each other before each socket.
func sendPairs(sockets []int) error {
	var arrived atomic.Int64
	var threads errgroup.Group
	for range 2 {
		threads.Go(func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for i, fd := range sockets {
				arrived.Add(1)
				for tries := 0; arrived.Load() < int64(2*i+2); tries++ {
					if tries > 1<<12 { // the other thread has no processor
						runtime.Gosched()
					}
				}
				if _, err := unix.Write(fd, []byte("?")); err != nil {
					arrived.Add(int64(2 * len(sockets))) // the other one waits no more
					return fmt.Errorf("send: %w", err)
				}
			}
			return nil
		})
	}
	return threads.Wait()
}

// unanswered returns how many of the two answers to each socket do not come in time.
func unanswered(sockets []int, deadline time.Time) (lost int) {
	b := make([]byte, 1<<10)
	for _, fd := range sockets {
		for range 2 {
			ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, _ = unix.Poll(ready, int(max(0, time.Until(deadline)).Milliseconds())) // Recvfrom detects errors
			if _, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT); err != nil {
				lost++
			}
		}
	}
	return lost
}
