// Package netlock is a lock that belongs to a network namespace.
//
// The lock is an instance of NFLOG or NFQUEUE with a number of its own, which no rule uses. The kernel binds such a
// number to one netlink socket, only for a process with CAP_NET_ADMIN over the namespace, and releases it when the
// socket is closed, even by kill -9. It lists the port of that socket. Other processes can neither take the lock nor
// make it look free. No file is needed.
package netlock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/handover"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Errors of this package.
var (
	// ErrHeld means that another socket holds the lock.
	ErrHeld = errors.New("lock is held")
	// ErrFree means that no socket holds the lock.
	ErrFree = errors.New("lock is free")
	// ErrPrivilege means that this process lacks CAP_NET_ADMIN over the network namespace.
	ErrPrivilege = errors.New("missing privilege: CAP_NET_ADMIN in this network namespace")
	// ErrUnsupported means that the kernel has neither NFLOG nor NFQUEUE.
	ErrUnsupported = errors.New("the kernel supports neither nfnetlink_log nor nfnetlink_queue " +
		"(CONFIG_NETFILTER_NETLINK_LOG, CONFIG_NETFILTER_NETLINK_QUEUE)")
)

// Number is the NFLOG group or NFQUEUE queue that is the lock, "SL" in ASCII.
const Number = 0x534c

// Options for Acquire and Socket.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one
}

// Lock is held until Close, or until the process ends. It is also released if
// nothing refers to the Lock any more.
type Lock struct{ file *os.File }

// Acquire takes the lock, with the first mechanism that the kernel supports. It does not wait. The error is ErrHeld,
// ErrPrivilege, ErrUnsupported or the error of a system call.
func Acquire(o Options) (*Lock, error) {
	var fd int
	err := netns.Do(o.NetNS, func() (err error) {
		fd, err = open()
		if err != nil {
			return err
		}
		if err = bind(fd); err == nil {
			err = alone(fd)
		}
		if err != nil {
			_ = unix.Close(fd) // releases the number
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("acquire lock of network namespace: %w", err)
	}
	return Adopt(os.NewFile(uintptr(fd), "netlink")), nil
}

// Adopt returns the lock that a file of File holds, and owns the file from then
// on.
func Adopt(file *os.File) *Lock { return &Lock{file} }

// File returns a file that holds the lock, too: it is released when both are
// closed. The caller closes it.
func (l *Lock) File() (*os.File, error) { return handover.Duplicate(l.file) }

// Close releases the lock.
func (l *Lock) Close() error { return l.file.Close() }

// open returns a netlink socket of netfilter that does not block.
func open() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return 0, ErrUnsupported
	}
	if err != nil {
		return 0, fmt.Errorf("open netlink socket of netfilter: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return 0, fmt.Errorf("bind netlink socket of netfilter: %w", err)
	}
	return fd, nil
}

// bind binds the number of the first mechanism that the kernel supports.
func bind(fd int) error {
	for _, m := range mechanisms() {
		err := m.acquire(fd)
		if !errors.Is(err, ErrUnsupported) {
			return err
		}
	}
	return ErrUnsupported
}

// alone returns ErrHeld if another socket has bound the number of another mechanism: it did
// so before the module of the preferred mechanism was loaded.
func alone(fd int) error {
	own, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("read own netlink port: %w", err)
	}
	for _, m := range mechanisms() {
		port, err := m.holder()
		switch {
		case errors.Is(err, ErrFree):
		case err != nil:
			return err
		case port != own.(*unix.SockaddrNetlink).Pid:
			return ErrHeld
		}
	}
	return nil
}

// header returns the headers of a netfilter netlink message about Number.
func header(length int, kind uint16) []byte {
	b := make([]byte, 0, length)
	b = binary.NativeEndian.AppendUint32(b, uint32(length))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = append(b, make([]byte, 8)...)                // sequence and port: one request, one answer
	b = append(b, unix.AF_UNSPEC, unix.NFNETLINK_V0) // struct nfgenmsg
	return binary.BigEndian.AppendUint16(b, Number)
}
