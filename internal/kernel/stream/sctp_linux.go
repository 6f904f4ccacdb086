package stream

import (
	"encoding/binary"
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of linux/sctp.h.
const (
	sctpInitMsg     = 2
	sctpNoDelay     = 3
	sctpRecvRcvInfo = 32
	sctpSndInfo     = 2
	sctpRcvInfo     = 3
	sctpUnordered   = 1
)

// Streams is how many streams an association has at most in each direction.
const Streams = 64

// setMessages sets the options of all associations: a message is sent at once, and received with its Info.
func setMessages(fd int) {
	option(fd, unix.IPPROTO_SCTP, sctpNoDelay, 1)
	option(fd, unix.IPPROTO_SCTP, sctpRecvRcvInfo, 1)
	initial := struct{ out, in, attempts, timeout uint16 }{out: Streams, in: Streams} // struct sctp_initmsg; 0: as before
	_, _, _ = unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_SCTP, sctpInitMsg,
		uintptr(unsafe.Pointer(&initial)), unsafe.Sizeof(initial), 0)
}

// Info is the ancillary data of a message of SCTP (RFC 6458, sections 5.3.4 and 5.3.5).
type Info struct {
	Stream    uint16
	Unordered bool
	PPID      [4]byte // the payload protocol identifier, as on the wire
}

// The sizes of struct sctp_sndinfo and struct sctp_rcvinfo, and where their fields are.
const (
	sndInfoSize = 16
	rcvInfoSize = 28
	sndFlagsAt  = 2
	sndPPIDAt   = 4
	rcvFlagsAt  = 4
	rcvPPIDAt   = 8
)

// Receive reads a message of SCTP, or a part; last reports whether it is the last one. 0: the peer has shut
// the association down.
func Receive(fd int, b []byte) (n int, i Info, last bool, e syscall.Errno) {
	control := make([]byte, unix.CmsgSpace(rcvInfoSize))
	n, controlSize, flags, _, err := unix.Recvmsg(fd, b, control, 0)
	if err != nil {
		return 0, Info{}, false, number(err)
	}
	list, err := unix.ParseSocketControlMessage(control[:controlSize])
	if err != nil {
		return 0, Info{}, false, unix.EBADMSG
	}
	for _, c := range list {
		if c.Header.Level != unix.IPPROTO_SCTP || c.Header.Type != sctpRcvInfo || len(c.Data) < rcvInfoSize {
			continue
		}
		i.Stream = binary.NativeEndian.Uint16(c.Data)
		i.Unordered = binary.NativeEndian.Uint16(c.Data[rcvFlagsAt:])&sctpUnordered != 0
		i.PPID = [4]byte(c.Data[rcvPPIDAt:])
	}
	return n, i, flags&unix.MSG_EOR != 0, 0
}

// Send writes a whole message of SCTP.
func Send(fd int, b []byte, i Info) syscall.Errno {
	control := make([]byte, unix.CmsgSpace(sndInfoSize))
	header := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(control)))
	header.Level, header.Type = unix.IPPROTO_SCTP, sctpSndInfo
	header.SetLen(unix.CmsgLen(sndInfoSize))
	info := control[unix.CmsgLen(0):]
	binary.NativeEndian.PutUint16(info, i.Stream)
	if i.Unordered {
		binary.NativeEndian.PutUint16(info[sndFlagsAt:], sctpUnordered)
	}
	copy(info[sndPPIDAt:], i.PPID[:])
	_, err := unix.SendmsgN(fd, b, control, nil, unix.MSG_NOSIGNAL)
	return number(err)
}

func number(err error) (e syscall.Errno) {
	if err != nil && !errors.As(err, &e) {
		e = unix.EIO
	}
	return e
}
