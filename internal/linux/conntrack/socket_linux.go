package conntrack

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
	partSize = 32 << 10 // bytes of the read buffer

	nlmsgHeaderLen, attrHeaderLen = 16, 4 // of linux/netlink.h
)

// socket reads netlink messages in large parts, with one system call for each part. The methods of netlink.Conn take
// twice as long for a listing: they start a goroutine for each call, and make two system calls for each smaller part.
type socket struct {
	*netlink.Conn
	raw  syscall.RawConn
	buf  []byte
	last uint32 // sequence number of the last request
}

// dial opens a socket in the network namespace of a file descriptor, or in the current one if it is 0.
func dial(netns int) (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open conntrack netlink: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("open conntrack netlink: %w", err)
	}
	return &socket{Conn: conn, raw: raw, buf: make([]byte, partSize)}, nil
}

// query sends a request, and calls fn with each message of the answer until fn returns an error. A message is valid
// only during the call.
func (s *socket) query(request netlink.Message, fn func(syscall.NetlinkMessage) error) error {
	s.last++
	request.Header.Length = uint32(nlmsgHeaderLen + len(request.Data)) //nolint:gosec // a few attributes
	request.Header.Flags |= netlink.Request
	request.Header.Sequence = s.last
	b, err := request.MarshalBinary()
	if err != nil {
		return err
	}
	var failed error
	err = s.raw.Control(func(fd uintptr) {
		failed = unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	for {
		part, err := s.wait()
		if err != nil {
			return err
		}
		for m := range messages(part) {
			if m.Header.Seq != s.last {
				continue // the rest of an earlier answer
			}
			if m.Header.Type == unix.NLMSG_DONE || m.Header.Type == unix.NLMSG_ERROR {
				return failure(m)
			}
			if err := fn(m); err != nil {
				return err
			}
			if request.Header.Flags&netlink.Dump == 0 {
				return nil
			}
		}
	}
}

// failure returns the error code of the message that ends an answer, or nil.
func failure(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return errShort
	}
	if code := int32(binary.NativeEndian.Uint32(m.Data)); code < 0 { //nolint:gosec // the kernel sends a signed number
		return unix.Errno(-code)
	}
	return nil
}

// messages yields the messages of a part. Unlike syscall.ParseNetlinkMessage it does not allocate.
func messages(part []byte) iter.Seq[syscall.NetlinkMessage] {
	return func(yield func(syscall.NetlinkMessage) bool) {
		for len(part) >= nlmsgHeaderLen {
			size := binary.NativeEndian.Uint32(part)
			if size < nlmsgHeaderLen || int(size) > len(part) {
				return
			}
			m := syscall.NetlinkMessage{Data: part[nlmsgHeaderLen:size], Header: syscall.NlMsghdr{
				Len: size, Type: binary.NativeEndian.Uint16(part[4:]), Flags: binary.NativeEndian.Uint16(part[6:]),
				Seq: binary.NativeEndian.Uint32(part[8:]), Pid: binary.NativeEndian.Uint32(part[12:]),
			}}
			if !yield(m) {
				return
			}
			part = part[min(int(size+3)&^3, len(part)):]
		}
	}
}

// wait blocks until a part arrives. The part is valid until the next call of wait or next.
func (s *socket) wait() (part []byte, err error) {
	failed := s.raw.Read(func(fd uintptr) bool {
		part, err = s.read(fd)
		return err != unix.EAGAIN //nolint:errorlint // an errno
	})
	if failed != nil {
		return nil, failed
	}
	return part, err
}

// next returns a part that has arrived, or unix.EAGAIN.
func (s *socket) next() (part []byte, err error) {
	failed := s.raw.Control(func(fd uintptr) { part, err = s.read(fd) })
	if failed != nil {
		return nil, failed
	}
	return part, err
}

func (s *socket) read(fd uintptr) ([]byte, error) {
	n, _, err := unix.Recvfrom(int(fd), s.buf, unix.MSG_DONTWAIT)
	return s.buf[:max(n, 0)], err
}
