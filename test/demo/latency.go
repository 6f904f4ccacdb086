//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// race measures how long connect takes to a service and straight to its
// backends, by turns, so that whatever else the machine does slows both alike.
type race struct {
	from    *lab.Host
	service netip.AddrPort
	direct  []netip.AddrPort
}

// latency is what a race measured.
type latency struct{ service, direct []time.Duration }

func (r race) run(rounds int) (latency, error) {
	var out latency
	source := r.from.Addr(r.service.Addr())
	err := r.from.Do(func() error {
		for i := range rounds {
			straight, err := connect(source, r.direct[i%len(r.direct)])
			if err != nil {
				return err
			}
			served, err := connect(source, r.service)
			if err != nil {
				return err
			}
			out.direct = append(out.direct, straight)
			out.service = append(out.service, served)
		}
		return nil
	})
	return out, err
}

// connect times a TCP handshake. One that a signal interrupts, as Go's own runtime
// sends them to its threads, says nothing and is made again.
func connect(from netip.Addr, to netip.AddrPort) (time.Duration, error) {
	for {
		took, err := handshake(from, to)
		if !errors.Is(err, unix.EINTR) {
			return took, err
		}
	}
}

// handshake times a TCP handshake and nothing else. The connection is reset, so
// that none waits for its end.
func handshake(from netip.Addr, to netip.AddrPort) (time.Duration, error) {
	domain := unix.AF_INET
	if to.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 2}),
		unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0))),
	)
	if err != nil {
		return 0, fmt.Errorf("prepare socket: %w", err)
	}
	address := sockaddr(to)
	start := time.Now()
	err = unix.Connect(fd, address)
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	return took, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
