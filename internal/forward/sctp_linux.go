package forward

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/stream"
)

// maxMessage is the size of a message of SCTP, in bytes, from which on the association is aborted. The
// kernel sends none that does not fit into the buffer of a socket (net.core.wmem_default, 208 KiB).
const maxMessage = 256 << 10

// errNoSCTP is returned for a Listener on a kernel without SCTP.
var errNoSCTP = errors.New("SCTP: this kernel has no SCTP sockets (CONFIG_IP_SCTP, module sctp)")

// HasSCTP reports whether an Engine forwards SCTP on this host.
func HasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// listenSCTP opens a listening socket of SCTP, which is forwarded as TCP is, but by messages: each keeps its
// stream, its order and its payload protocol identifier.
func (p *poller) listenSCTP(l *Listener) (server, error) {
	s, err := p.listenTCP(l)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, errNoSCTP
	}
	return s, err
}

// message is the state of a direction that moves messages.
type message struct {
	info stream.Info // of direction.pending
	part []byte      // the beginning of a message that was not received whole
}

// receive reads a message, or a part. It returns false if the association, or this direction, has come
// to its end.
func (d *direction) receive() (int, bool) {
	buffer := d.buffer()
	n, info, last, e := stream.Receive(d.from.fd, buffer)
	switch {
	case e == unix.EAGAIN:
		d.readable = false
		return 0, true
	case e != 0:
		d.from.conn.abort()
		return 0, false
	case n == 0:
		d.shutDown()
		return 0, false
	}
	d.moved += n
	if len(d.message.part)+n > maxMessage {
		d.from.conn.abort()
		return 0, false
	}
	d.message.part = append(d.message.part, buffer[:n]...)
	if last {
		d.message.info, d.pending, d.message.part = info, d.message.part, nil
	}
	return n, true
}

// send writes the pending message.
func (d *direction) send() (int, syscall.Errno) {
	n := len(d.pending)
	e := stream.Send(d.to.fd, d.pending, d.message.info)
	if e == 0 {
		d.pending = nil
	}
	return n, e
}

// shutDown passes on that the peer has shut the association down. SCTP has no half-closed state (RFC 9260,
// section 9): what the other side has sent meanwhile cannot be delivered. It is read, as closing a socket
// with messages would abort the association.
func (d *direction) shutDown() {
	const most = 256
	for range most {
		if n, _, _, e := stream.Receive(d.to.fd, d.buffer()); n == 0 || e != 0 {
			break
		}
	}
	d.from.conn.end()
}
