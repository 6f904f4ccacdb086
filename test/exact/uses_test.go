//go:build linux

package exact

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// use is a way to use sockets. What a program sees is text, and may be an error.
type use struct {
	name string
	run  func(*program) (string, error)
}

// Destinations.
var (
	web, twin, outer  = at(web4, port), at(twin4, port), at(external, port)
	name, twinName    = at(web4, dns), at(twin4, dns)
	podA              = at("10.180.1.1", port)
	webIPv6, nameIPv6 = at(web6, port), at(web6, dns)
)

// nestedUses are the uses in a container inside of the pod, which has another Service.
func nestedUses() []use {
	return []use{
		{"TCP", fresh(unix.SOCK_STREAM, web)},
		{"TCP, kept", kept(unix.SOCK_STREAM, web)},
		{"TCP, peer and own address", names(unix.SOCK_STREAM, web)},
	}
}

func uses() []use {
	list := []use{
		{"TCP", fresh(unix.SOCK_STREAM, web)},
		{"TCP, IPv6", fresh(unix.SOCK_STREAM, webIPv6)},
		{"TCP, kept", kept(unix.SOCK_STREAM, web)},
		{"TCP, kept, IPv6", kept(unix.SOCK_STREAM, webIPv6)},
		{"TCP, external address", fresh(unix.SOCK_STREAM, outer)},
		{"TCP, mapped address", mapped(unix.SOCK_STREAM, web)},
		{"TCP, bound to an address", fresh(unix.SOCK_STREAM, web, bound)},
		{"TCP, bound to an interface", fresh(unix.SOCK_STREAM, web, toInterface)},
		{"TCP, interface by IP_UNICAST_IF", fresh(unix.SOCK_STREAM, web, byUnicastIF)},
		{"TCP, SO_MARK", fresh(unix.SOCK_STREAM, web, marked)},
		{"TCP, half-closed", halfClosed},
		{"TCP, connected again", reconnected(unix.SOCK_STREAM, web)},
		{"TCP, peer and own address", names(unix.SOCK_STREAM, web)},
		{"TCP, duplicate of a socket", duplicated(unix.SOCK_STREAM, web)},
		{"TCP, not blocking", notBlocking},
		{"TCP, fast open", fastOpen},
		{"TCP, one port to two Services", onePort(unix.SOCK_STREAM, web, twin)},
		{"MPTCP", multipath},
		{"MPTCP, kept", multipathKept},
		{"TCP, a port that the Service lacks", noPort},
	}
	for _, u := range []struct {
		name     string
		to, twin netip.AddrPort
		ipv6     netip.AddrPort
	}{{"UDP", web, twin, webIPv6}, {"DNS", name, twinName, nameIPv6}} {
		direct := netip.AddrPortFrom(podA.Addr(), u.to.Port())
		list = append(list,
			use{u.name + ", connected", fresh(unix.SOCK_DGRAM, u.to)},
			use{u.name + ", connected, IPv6", fresh(unix.SOCK_DGRAM, u.ipv6)},
			use{u.name + ", connected, kept", kept(unix.SOCK_DGRAM, u.to)},
			use{u.name + ", connected, kept, IPv6", kept(unix.SOCK_DGRAM, u.ipv6)},
			use{u.name + ", not connected", unconnected(u.to)},
			use{u.name + ", not connected, IPv6", unconnected(u.ipv6)},
			use{u.name + ", not connected, kept", inTurnKept(u.to)},
			use{u.name + ", not connected, bound to an address", unconnected(u.to, bound)},
			use{u.name + ", connected, bound to an interface", fresh(unix.SOCK_DGRAM, u.to, toInterface)},
			use{u.name + ", connected, interface by IP_UNICAST_IF", fresh(unix.SOCK_DGRAM, u.to, byUnicastIF)},
			use{u.name + ", not connected, interface by IP_UNICAST_IF", unconnected(u.to, byUnicastIF)},
			use{u.name + ", not connected, interface by IP_PKTINFO", packetInfo(u.to, false)},
			use{u.name + ", not connected, source by IP_PKTINFO", packetInfo(u.to, true)},
			use{u.name + ", mapped address", mapped(unix.SOCK_DGRAM, u.to)},
			use{u.name + ", Service and pod on one socket", inTurn(u.to, direct)},
			use{u.name + ", Service and pod on one socket, kept", inTurnKept(u.to, direct)},
			use{u.name + ", two Services on one socket", inTurn(u.to, u.twin)},
			use{u.name + ", connected, another destination", elsewhere(u.to, direct)},
			use{u.name + ", connected again", reconnected(unix.SOCK_DGRAM, u.to)},
			use{u.name + ", peer and own address", names(unix.SOCK_DGRAM, u.to)},
			use{u.name + ", duplicate of a socket", duplicated(unix.SOCK_DGRAM, u.to)},
			use{u.name + ", one port to two Services", onePort(unix.SOCK_DGRAM, u.to, u.twin)},
			use{u.name + ", several datagrams", several(u.to)},
		)
	}
	return list
}

// fresh opens a socket each time.
func fresh(kind int, to netip.AddrPort, options ...option) func(*program) (string, error) {
	return func(p *program) (string, error) {
		return p.once(func() (int, error) { return p.dial(kind, 0, to, options...) })
	}
}

// kept opens a socket once.
func kept(kind int, to netip.AddrPort) func(*program) (string, error) {
	return func(p *program) (string, error) {
		return p.again(func() (int, error) { return p.dial(kind, 0, to) })
	}
}

func bound(p *program, fd int) error {
	return unix.Bind(fd, lab.Sockaddr(netip.AddrPortFrom(p.host.Addr4(), 0)))
}

func (p *program) link() string { return p.host.Interface() }

func toInterface(p *program, fd int) error {
	return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, p.link())
}

// index returns the index of the interface of the client.
func (p *program) index() (int, error) {
	link, err := net.InterfaceByName(p.link())
	if err != nil {
		return 0, err
	}
	return link.Index, nil
}

func byUnicastIF(p *program, fd int) error {
	i, err := p.index()
	if err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_UNICAST_IF, int(htonl(uint32(i))))
}

func htonl(n uint32) uint32 { return n<<24 | n>>24 | n<<8&0xff0000 | n>>8&0xff00 }

func marked(_ *program, fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 0x7)
}

func mapped(kind int, to netip.AddrPort) func(*program) (string, error) {
	return func(p *program) (string, error) {
		return p.once(func() (int, error) {
			fd, err := p.socket(unix.AF_INET6, kind, 0)
			if err == nil {
				err = retried(func() error {
					return unix.Connect(fd, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
				})
			}
			return fd, err
		})
	}
}

func halfClosed(p *program) (string, error) {
	fd, err := p.dial(unix.SOCK_STREAM, 0, web)
	if err != nil {
		return "", err
	}
	defer p.close(fd)
	q := p.question()
	if err := retried(func() error { return unix.Send(fd, []byte(q+"\n"), 0) }); err != nil {
		return "", err
	}
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return "", err
	}
	return p.answer(fd, q, false)
}

// reconnected disconnects a socket, and connects it again.
func reconnected(kind int, to netip.AddrPort) func(*program) (string, error) {
	return func(p *program) (string, error) {
		fd, err := p.keep(func() (int, error) { return p.dial(kind, 0, to) })
		if err != nil {
			return "", err
		}
		if err := disconnect(fd); err != nil {
			return "", err
		}
		if err := retried(func() error { return unix.Connect(fd, lab.Sockaddr(to)) }); err != nil {
			p.close(fd)
			p.kept = -1
			return "", err
		}
		return p.ask(fd)
	}
}

func disconnect(fd int) error {
	var none unix.RawSockaddr // AF_UNSPEC
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unix.SizeofSockaddrInet4)
	if errno != 0 {
		return errno
	}
	return nil
}

func names(kind int, to netip.AddrPort) func(*program) (string, error) {
	return func(p *program) (string, error) {
		fd, err := p.dial(kind, 0, to)
		if err != nil {
			return "", err
		}
		defer p.close(fd)
		peer, err := unix.Getpeername(fd)
		if err != nil {
			return "", err
		}
		own, err := unix.Getsockname(fd)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("peer %s:%d, own address of %s",
			p.node.called(lab.AddrPort(peer).Addr()), lab.AddrPort(peer).Port(), p.node.called(lab.AddrPort(own).Addr())), nil
	}
}

func duplicated(kind int, to netip.AddrPort) func(*program) (string, error) {
	return func(p *program) (string, error) {
		return p.once(func() (int, error) {
			fd, err := p.dial(kind, 0, to)
			if err != nil {
				return -1, err
			}
			defer p.close(fd)
			return unix.Dup(fd)
		})
	}
}

func notBlocking(p *program) (string, error) {
	return p.once(func() (int, error) {
		fd, err := p.socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return fd, err
		}
		if err := unix.Connect(fd, lab.Sockaddr(web)); err != nil && err != unix.EINPROGRESS {
			return fd, err
		}
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		err = retried(func() error {
			_, err := unix.Poll(poll, int(patience.Milliseconds()))
			return err
		})
		if err != nil {
			return fd, err
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			return fd, err
		}
		return fd, unix.SetNonblock(fd, false)
	})
}

// fastOpen sends data with the first packet, where the server allows that.
func fastOpen(p *program) (string, error) {
	fd, err := p.socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return "", err
	}
	defer p.close(fd)
	q := p.question()
	if err := retried(func() error {
		return unix.Sendto(fd, []byte(q+"\n"), unix.MSG_FASTOPEN, lab.Sockaddr(web))
	}); err != nil {
		return "", err
	}
	return p.answer(fd, q, false)
}

// onePort binds two sockets to one port, and connects each to another Service. It tries again if another program has
// got the same port.
func onePort(kind int, to, twin netip.AddrPort) func(*program) (string, error) {
	return func(p *program) (string, error) {
		seen, err := p.onePort(kind, to, twin)
		for range 100 {
			if !errors.Is(err, unix.EADDRINUSE) {
				break
			}
			seen, err = p.onePort(kind, to, twin)
		}
		return seen, err
	}
}

func (p *program) onePort(kind int, to, twin netip.AddrPort) (string, error) {
	first, err := p.dial(kind, 0, to, reusing)
	if err != nil {
		return "", err
	}
	defer p.close(first)
	own, err := unix.Getsockname(first)
	if err != nil {
		return "", err
	}
	second, err := p.dial(kind, 0, twin, reusing, func(_ *program, fd int) error {
		return unix.Bind(fd, &unix.SockaddrInet4{Port: int(lab.AddrPort(own).Port())})
	})
	if err != nil {
		return "", err
	}
	defer p.close(second)
	return observed(p.ask(first)) + ", " + observed(p.ask(second)), nil
}

func reusing(_ *program, fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

func multipath(p *program) (string, error) {
	return p.once(func() (int, error) { return p.dial(unix.SOCK_STREAM, unix.IPPROTO_MPTCP, web) })
}

func multipathKept(p *program) (string, error) {
	return p.again(func() (int, error) { return p.dial(unix.SOCK_STREAM, unix.IPPROTO_MPTCP, web) })
}

func noPort(p *program) (string, error) {
	fd, err := p.dial(unix.SOCK_STREAM, 0, at(web4, 9))
	p.close(fd)
	return "", err
}
