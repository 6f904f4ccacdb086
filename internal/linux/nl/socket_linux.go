package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	messageHeader = 16 // bytes of struct nlmsghdr

	// partSize is more than the kernel sends at once: 32 KB of a listing, or the request that it refuses.
	partSize = 64 << 10
)

// Socket reads messages in large parts, with one system call for each part, into the same memory. The methods of
// netlink.Conn take twice as long for a listing: they start a goroutine for each call, make two system calls for each
// smaller part, and allocate memory for it.
type Socket struct {
	*netlink.Conn

	raw  syscall.RawConn
	read func(fd uintptr) bool // reads into buf, and sets n and err
	buf  []byte
	n    int
	err  error
}

// NewSocket returns a Socket.
func NewSocket(conn *netlink.Conn) (*Socket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("reach netlink socket: %w", err)
	}
	s := &Socket{Conn: conn, raw: raw, buf: make([]byte, partSize)}
	s.read = func(fd uintptr) bool {
		s.n, s.err = unix.Read(int(fd), s.buf)
		return !errors.Is(s.err, unix.EAGAIN)
	}
	return s, nil
}

// Write sends encoded messages.
func (s *Socket) Write(b []byte) (err error) {
	if waitErr := s.raw.Write(func(fd uintptr) bool {
		_, err = unix.Write(int(fd), b)
		return !errors.Is(err, unix.EAGAIN)
	}); waitErr != nil {
		return waitErr // such as the end of the deadline
	}
	return err
}

// Wait blocks until a part arrives. The part is valid until the next call of Wait or Next.
func (s *Socket) Wait() (part []byte, err error) {
	if err := s.raw.Read(s.read); err != nil {
		return nil, err
	}
	return s.buf[:max(s.n, 0)], s.err
}

// Next returns a part that has arrived, or unix.EAGAIN.
func (s *Socket) Next() (part []byte, err error) {
	if err := s.raw.Control(func(fd uintptr) { s.read(fd) }); err != nil {
		return nil, err
	}
	return s.buf[:max(s.n, 0)], s.err
}

// Messages yields the messages of a part, whose data are in the part.
func Messages(part []byte) iter.Seq[netlink.Message] {
	return func(yield func(netlink.Message) bool) {
		for len(part) >= messageHeader {
			size := binary.NativeEndian.Uint32(part)
			if size < messageHeader || int(size) > len(part) {
				return
			}
			m := netlink.Message{Data: part[messageHeader:size], Header: netlink.Header{
				Length: size, Type: netlink.HeaderType(binary.NativeEndian.Uint16(part[4:])),
				Flags:    netlink.HeaderFlags(binary.NativeEndian.Uint16(part[6:])),
				Sequence: binary.NativeEndian.Uint32(part[8:]), PID: binary.NativeEndian.Uint32(part[12:]),
			}}
			if !yield(m) {
				return
			}
			part = part[min(aligned(int(size)), len(part)):]
		}
	}
}

// Ends reports whether a message ends an answer. The error is the error code in it.
func Ends(m netlink.Message) (ends bool, err error) {
	switch {
	case m.Header.Type != netlink.Done && m.Header.Type != netlink.Error:
		return false, nil
	case len(m.Data) < 4:
		return true, errTruncated
	}
	if code := int32(binary.NativeEndian.Uint32(m.Data)); code < 0 {
		return true, unix.Errno(-code)
	}
	return true, nil
}
