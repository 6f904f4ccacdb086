//go:build linux

package exact

import (
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// unconnected sends from a new socket.
func unconnected(to netip.AddrPort, options ...option) func(*program) (string, error) {
	return func(p *program) (string, error) {
		fd, err := p.open(domain(to), unix.SOCK_DGRAM, 0, options...)
		defer p.close(fd)
		if err != nil {
			return "", err
		}
		return p.askTo(fd, to)
	}
}

// inTurn asks several destinations on one socket.
func inTurn(to ...netip.AddrPort) func(*program) (string, error) {
	return func(p *program) (string, error) {
		fd, err := p.socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return "", err
		}
		defer p.close(fd)
		return p.askAll(fd, to)
	}
}

func inTurnKept(to ...netip.AddrPort) func(*program) (string, error) {
	return func(p *program) (string, error) {
		fd, err := p.keep(func() (int, error) { return p.socket(unix.AF_INET, unix.SOCK_DGRAM, 0) })
		if err != nil {
			return "", err
		}
		return p.askAll(fd, to)
	}
}

func (p *program) askAll(fd int, to []netip.AddrPort) (string, error) {
	var answers []string
	for _, a := range to {
		answers = append(answers, observed(p.askTo(fd, a)))
	}
	return strings.Join(answers, ", "), nil
}

// elsewhere sends a datagram to another address than that to which the socket is connected. Its answer does not pass.
func elsewhere(to, other netip.AddrPort) func(*program) (string, error) {
	return func(p *program) (string, error) {
		fd, err := p.dial(unix.SOCK_DGRAM, 0, to)
		if err != nil {
			return "", err
		}
		defer p.close(fd)
		return p.askTo(fd, other)
	}
}

// packetInfo chooses the interface of a datagram, and may choose its source.
func packetInfo(to netip.AddrPort, source bool) func(*program) (string, error) {
	return func(p *program) (string, error) {
		fd, err := p.socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return "", err
		}
		defer p.close(fd)
		i, err := p.index()
		if err != nil {
			return "", err
		}
		info := unix.Inet4Pktinfo{Ifindex: int32(i)}
		if source {
			info.Spec_dst = p.host.Addr4().As4()
		}
		q := p.question()
		if err := retried(func() error {
			return unix.Sendmsg(fd, []byte(q), unix.PktInfo4(&info), lab.Sockaddr(to), 0)
		}); err != nil {
			return "", err
		}
		return p.answer(fd, q, true)
	}
}

// several sends all questions before it reads an answer.
func several(to netip.AddrPort) func(*program) (string, error) {
	return func(p *program) (string, error) {
		fd, err := p.socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return "", err
		}
		defer p.close(fd)
		var last string
		for range 20 {
			last = p.question()
			if err := retried(func() error { return unix.Sendto(fd, []byte(last), 0, lab.Sockaddr(to)) }); err != nil {
				return "", err
			}
		}
		return p.answer(fd, last, true)
	}
}
