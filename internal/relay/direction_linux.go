package relay

import (
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/relay/socket"
)

// direction is one direction of a conn. Small messages are copied by the buffer of the loop. If more comes
// than fits into it, the direction has a pipe from then on, as long as there are bytes to move: the kernel
// moves them without a copy.
type direction struct {
	from, to *side
	count    *atomic.Int64 // of the bytes
	pending  []byte        // read, but not written
	pipe     socket.Pipe   // valid if piped
	kept     int           // how many bytes of pending count for tcpLoop.kept
	held     int           // how many bytes are in the pipe
	moved    int           // how many bytes were moved since the direction was idle
	piped    bool
	bulk     bool // when the direction was busy the last time, the buffer was too small
	readable bool // there may be bytes to read
	blocked  bool // the destination takes no more until the next event
	queued   bool // Loop.Next will continue
	done     bool // the end was passed on

	// toEnd means that the peer has closed its side, so that no event follows, or has sent urgent data, at which reads
	// end early.
	toEnd bool
}

// maxTurn is how many bytes a direction may move before others have their turn.
const maxTurn = 1 << 20

// maxSplice is how many bytes a pipe may hold, and maxPipes how many pipes a worker may have. So clients
// that do not read cannot make the kernel hold much. Without a pipe, bytes are copied.
const (
	maxSplice = 512 << 10
	maxPipes  = 128
)

// turnPerRead is how much of a turn each read takes beside its bytes, so that many small ones take no longer than
// others.
const turnPerRead = 2 << 10

// received records an event that means that there are bytes, an end or an error to read.
func (d *direction) received(events uint32) {
	d.readable = d.readable || events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	d.toEnd = d.toEnd || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLPRI) != 0
}

// pump moves bytes until there are none or the destination takes no more.
func (d *direction) pump() {
	c := d.from.conn
	for turn := 0; ; {
		if d.done || d.queued || !d.flush() {
			return
		}
		if !d.readable {
			d.idle()
			return
		}
		if turn > maxTurn {
			d.queued = true
			c.owner.worker.Next(d.resume)
			return
		}
		n, ok := d.fill()
		if !ok {
			return
		}
		turn += n + turnPerRead
	}
}

// resume continues after others had their turn.
func (d *direction) resume() {
	d.queued = false
	c := d.from.conn
	if c.state == open || c.state == resetting && d.from == c.gone {
		d.pump()
	}
}

// flush writes the pending bytes. It returns false if some are left.
func (d *direction) flush() bool {
	for len(d.pending) > 0 || d.held > 0 {
		if d.blocked {
			return false
		}
		n, e := d.write()
		if e == unix.EAGAIN {
			d.blocked = true
			return false
		}
		if e != 0 {
			d.from.conn.reset(d.to)
			return false
		}
		d.count.Add(int64(n))
	}
	d.release()
	return true
}

// keep keeps bytes that the destination does not take yet.
func (d *direction) keep(b []byte) {
	d.pending, d.kept = b, len(b)
	d.from.conn.owner.worker.tcp.kept += d.kept
}

// release discards the pending bytes.
func (d *direction) release() {
	d.from.conn.owner.worker.tcp.kept -= d.kept
	d.pending, d.kept = nil, 0
}

// write writes some of the pending bytes.
func (d *direction) write() (n int, e syscall.Errno) {
	if len(d.pending) > 0 {
		n, e = socket.Write(d.to.fd, d.pending)
		if e == 0 {
			d.pending = d.pending[n:]
		}
		return n, e
	}
	n, e = socket.Splice(d.pipe.Read, d.to.fd, d.held)
	if e == 0 {
		d.held -= n
	}
	return n, e
}

// fill reads. It returns false if the connection, or this direction, has come to its end.
func (d *direction) fill() (int, bool) {
	var n int
	var e syscall.Errno
	piped := d.bulk && d.getPipe()
	if piped {
		n, e = socket.Splice(d.from.fd, d.pipe.Write, maxSplice)
		piped = !d.atMark(n, e)
	}
	if !piped {
		n, e = socket.Read(d.from.fd, d.buffer())
	}
	switch {
	case e == unix.EAGAIN:
		d.readable = false
		return 0, true
	case e != 0 && d.from.conn.state == open:
		d.from.conn.reset(d.from)
		return 0, false
	case e != 0 || n == 0 && d.from.conn.state == resetting:
		d.from.conn.passReset()
		return 0, false
	case n == 0:
		d.finish()
		return 0, false
	}
	d.moved += n
	if piped {
		d.held += n
		return n, true
	}
	full := n == len(d.buffer())
	d.readable = full || d.toEnd
	d.bulk = d.bulk || full
	return n, d.copied(d.buffer()[:n])
}

// atMark reports whether there may be urgent data where a splice ended: only a read gets past it, so the splice found
// no bytes, or the end of the bytes after it.
func (d *direction) atMark(n int, e syscall.Errno) bool {
	return e == 0 && n == 0 || e == unix.EAGAIN && d.toEnd
}

// copied writes bytes from the buffer of the loop. It keeps bytes that the destination does not take.
func (d *direction) copied(b []byte) bool {
	n, e := socket.Write(d.to.fd, b)
	switch e {
	case 0:
		d.count.Add(int64(n))
		b = b[n:]
	case unix.EAGAIN:
	default:
		d.from.conn.reset(d.to)
		return false
	}
	if len(b) > 0 {
		d.keep(append([]byte(nil), b...))
	}
	return true
}

// buffer returns the buffer of the loop, or a small part if directions whose destinations do not read keep much: the
// next one that reads may have such a destination too.
func (d *direction) buffer() []byte {
	t := &d.from.conn.owner.worker.tcp
	if t.kept > maxKept {
		return t.buffer[:smallRead]
	}
	return t.buffer
}

// finish passes on that the source has closed its direction. The connection ends with the second one.
func (d *direction) finish() {
	c := d.from.conn
	d.done = true
	d.putPipe()
	if c.up.done && c.down.done {
		c.freePort()
		c.end()
		return
	}
	socket.CloseWrite(d.to.fd)
}

// idle releases the pipe when the direction has moved all bytes.
func (d *direction) idle() {
	d.putPipe()
	d.bulk = d.bulk && d.moved >= bufferSize
	d.moved = 0
}

// getPipe makes sure that the direction has a pipe. It returns false if there is none.
func (d *direction) getPipe() bool {
	if d.piped {
		return true
	}
	t := &d.from.conn.owner.worker.tcp
	if n := len(t.pipes); n > 0 {
		d.pipe, t.pipes, d.piped = t.pipes[n-1], t.pipes[:n-1], true
		return true
	}
	if t.pipeCount >= t.pipeLimit {
		return false
	}
	p, err := socket.NewPipe()
	if err != nil {
		return false
	}
	t.pipeCount++
	d.pipe, d.piped = p, true
	return true
}

// putPipe gives the pipe, which is empty, back.
func (d *direction) putPipe() {
	if !d.piped {
		return
	}
	d.piped = false
	t := &d.from.conn.owner.worker.tcp
	t.pipes = append(t.pipes, d.pipe)
}

// discard drops everything.
func (d *direction) discard() {
	d.done = true
	d.release()
	if d.held > 0 {
		d.pipe.Close()
		d.from.conn.owner.worker.tcp.pipeCount--
		d.held, d.piped = 0, false
	}
	d.putPipe()
}
