//go:build linux

package exact

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// patience is how long a program waits for an answer.
const patience = 2 * time.Second

// program is a client that uses sockets in one way.
type program struct {
	use    use
	client string
	node   *node
	host   *lab.Host
	inside func(func() error) error // on the thread of the program
	kept   int                      // a socket; -1: none
	asked  atomic.Int32
}

// programs returns a program for each use and client, and for some uses in a container inside of the pod, and in the
// cgroup of systemd-resolved.
func (n *node) programs() (all []*program) {
	add := func(u use, client string, host *lab.Host, cgroup string, netns int) {
		p := &program{use: u, client: client, node: n, host: host, inside: lab.Inside(n, cgroup, netns), kept: -1}
		n.Cleanup(func() { p.close(p.kept) })
		all = append(all, p)
	}
	for name, h := range n.clients {
		for _, u := range uses() {
			add(u, name, h, h.Cgroup(), h.NetNSFD())
		}
	}
	host, pod := n.lab.NodeA, n.clients["pod"]
	resolved := lab.Below(n, host.Cgroup(), "system.slice/systemd-resolved.service")
	for _, u := range uses() {
		if strings.Contains(u.name, "DNS") {
			add(u, "resolver of systemd", host, resolved, host.NetNSFD())
		}
	}
	nested := n.nest()
	for _, u := range nestedUses() {
		add(u, "container in the pod", pod, pod.Cgroup(), nested)
	}
	return all
}

// observe uses sockets once, and returns what the program sees.
func (p *program) observe() (seen string) {
	_ = p.inside(func() error { // observed has the error
		seen = observed(p.use.run(p))
		return nil
	})
	return seen
}

// observed returns an answer or an error as text. A rule refuses the first datagram with EPERM, and the next ones
// with ECONNREFUSED.
func observed(seen string, err error) string {
	switch errno, is := errors.AsType[unix.Errno](err); {
	case is && (errno == unix.EAGAIN || errno == unix.EINPROGRESS):
		return "no answer"
	case is && (errno == unix.EPERM || errno == unix.ECONNREFUSED):
		return "refused"
	case is:
		return unix.ErrnoName(errno)
	case err != nil:
		return err.Error()
	}
	return seen
}

func (p *program) close(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// socket opens a socket with time limits.
func (p *program) socket(domain, kind, protocol int) (fd int, err error) {
	fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(int64(patience))
	return fd, errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
}

func domain(to netip.AddrPort) int {
	if to.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// option prepares a socket that is not connected yet.
type option func(p *program, fd int) error

// dial opens and connects a socket.
func (p *program) dial(kind, protocol int, to netip.AddrPort, options ...option) (int, error) {
	fd, err := p.open(domain(to), kind, protocol, options...)
	if err == nil {
		err = retried(func() error { return unix.Connect(fd, lab.Sockaddr(to)) })
	}
	if err != nil {
		p.close(fd)
		return -1, err
	}
	return fd, nil
}

func (p *program) open(domain, kind, protocol int, options ...option) (int, error) {
	fd, err := p.socket(domain, kind, protocol)
	for _, prepare := range options {
		if err == nil {
			err = prepare(p, fd)
		}
	}
	return fd, err
}

// retried repeats a system call that a signal of the Go runtime interrupted.
func retried(call func() error) error {
	for {
		err := call()
		if errors.Is(err, unix.EISCONN) {
			return nil // the interrupted connect
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// keep opens a socket at the first call, and returns it at all others. If it cannot be opened, the next call tries
// again.
func (p *program) keep(open func() (int, error)) (int, error) {
	if p.kept < 0 {
		var err error
		if p.kept, err = open(); err != nil {
			return -1, err
		}
	}
	return p.kept, nil
}

// question returns a text that no question before had.
func (p *program) question() string { return fmt.Sprint("q", p.asked.Add(1)) }

// ask sends a question on a connected socket, and returns who answered, and whom that one saw.
func (p *program) ask(fd int) (string, error) {
	return p.askTo(fd, netip.AddrPort{})
}

// askTo sends a question to an address; to none on a connected socket. The answer has its source if an address is
// given. It asks again after an error of an earlier datagram, and on a socket that was destroyed: whether a program
// sees that during a change or after it is a matter of time.
func (p *program) askTo(fd int, to netip.AddrPort) (string, error) {
	answer, err := p.askOnce(fd, to)
	if errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ECONNREFUSED) {
		answer, err = p.askOnce(fd, to)
	}
	return answer, err
}

func (p *program) askOnce(fd int, to netip.AddrPort) (string, error) {
	q := p.question()
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return "", err
	}
	if kind == unix.SOCK_STREAM {
		q += "\n"
	}
	send := func() error {
		if to.IsValid() {
			return retried(func() error { return unix.Sendto(fd, []byte(q), 0, lab.Sockaddr(to)) })
		}
		return retried(func() error { return unix.Send(fd, []byte(q), 0) })
	}
	if err := send(); err != nil {
		return "", err
	}
	return p.answer(fd, strings.TrimSpace(q), to.IsValid())
}

func (p *program) answer(fd int, question string, from bool) (string, error) {
	b := make([]byte, 256)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		var size int
		var peer unix.Sockaddr
		err := retried(func() error {
			var err error
			size, peer, err = unix.Recvfrom(fd, b, unix.MSG_NOSIGNAL)
			return err
		})
		if err != nil {
			return "", err
		}
		if size == 0 {
			return "", errors.New("end of stream")
		}
		text, ours := strings.CutPrefix(strings.TrimSpace(string(b[:size])), question+" ")
		if !ours {
			continue // late
		}
		text = strings.TrimSuffix(text, " sees "+p.client) // its own address
		if from {
			text += " from " + p.node.called(lab.AddrPort(peer).Addr())
		}
		return text, nil
	}
	return "", unix.EAGAIN
}

// once opens a socket, asks on it, and closes it.
func (p *program) once(open func() (int, error)) (string, error) {
	fd, err := open()
	defer p.close(fd)
	if err != nil {
		return "", err
	}
	return p.ask(fd)
}

// again asks on the kept socket, even if it has ended: the program does not open another one.
func (p *program) again(open func() (int, error)) (string, error) {
	fd, err := p.keep(open)
	if err != nil {
		return "", err
	}
	return p.ask(fd)
}
