// Package netlock is a lock that belongs to a network namespace, and a mailbox
// of its holder.
//
// The lock is an instance of NFLOG or NFQUEUE with a number of its own, which
// no rule uses. The kernel binds such a number to one netlink socket, only for
// a process with CAP_NET_ADMIN over the namespace, and releases it when the
// socket is closed, also by kill -9. It lists the port of that socket, and
// delivers messages from other processes to it, again only from a process with
// CAP_NET_ADMIN over the namespace. Other processes can neither take the lock
// nor keep messages from its holder. No file is needed.
package netlock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
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

// MaxMessage is the longest message in bytes.
const MaxMessage = 1024

// Options for Acquire, Socket and Send.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one
}

// Lock is held until Close, or until the process ends. It is also released if
// nothing refers to the Lock any more.
type Lock struct {
	file *os.File
	raw  syscall.RawConn
}

// Acquire takes the lock, with the first mechanism that the kernel supports. It
// does not wait. The error is ErrHeld, ErrPrivilege, ErrUnsupported or that of
// a system call.
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
			_ = unix.Close(fd) // releases what was bound
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("acquire lock of network namespace: %w", err)
	}
	return Adopt(os.NewFile(uintptr(fd), "netlink"))
}

// Adopt returns the lock that a file of File holds, and owns the file from then
// on.
func Adopt(file *os.File) (*Lock, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("acquire lock of network namespace: %w", err), file.Close())
	}
	return &Lock{file, raw}, nil
}

// File returns a file that holds the lock, too: it is released when both are
// closed. The caller closes it.
func (l *Lock) File() (*os.File, error) {
	var fd int
	var err error
	controlErr := l.raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(controlErr, err); err != nil {
		return nil, fmt.Errorf("hand over lock of network namespace: %w", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// Close releases the lock and ends Receive.
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
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	if err != nil {
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

// Message is a message from another process to the holder of the lock.
type Message struct {
	UID  int // of the sender; 65534 if this user namespace does not map it
	Text string
}

// Receive waits for a message. It returns os.ErrClosed after Close.
func (l *Lock) Receive() (Message, error) {
	for {
		var m Message
		var err error
		waitErr := l.raw.Read(func(fd uintptr) bool {
			m, err = receive(int(fd))
			return !errors.Is(err, unix.EAGAIN)
		})
		switch {
		case waitErr != nil:
			return Message{}, fmt.Errorf("receive message for holder of lock: %w", os.ErrClosed)
		case err == nil:
			return m, nil
		case !errors.Is(err, errNoMessage) && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR):
			return Message{}, fmt.Errorf("receive message for holder of lock: %w", err)
		}
	}
}

// errNoMessage means that the received data is from the kernel or truncated.
var errNoMessage = errors.New("not a message of a process")

func receive(fd int) (Message, error) {
	text, control := make([]byte, MaxMessage), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, controlLen, flags, from, err := unix.Recvmsg(fd, text, control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return Message{}, err
	}
	sender, isNetlink := from.(*unix.SockaddrNetlink)
	if !isNetlink || sender.Pid == 0 || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return Message{}, errNoMessage
	}
	parts, err := unix.ParseSocketControlMessage(control[:controlLen])
	if err != nil || len(parts) != 1 {
		return Message{}, errNoMessage
	}
	credentials, err := unix.ParseUnixCredentials(&parts[0])
	if err != nil {
		return Message{}, errNoMessage
	}
	return Message{UID: int(credentials.Uid), Text: string(text[:n])}, nil
}

// Send sends a message of up to MaxMessage bytes to the holder of the lock. It does not
// block. The error is ErrFree if there is no holder, and EAGAIN if the receive buffer of
// the holder is full.
func Send(o Options, text string) error {
	if len(text) > MaxMessage {
		return fmt.Errorf("send message to holder of lock: %d bytes, more than %d", len(text), MaxMessage)
	}
	err := netns.Do(o.NetNS, func() error {
		port, err := holder()
		if err != nil {
			return err
		}
		fd, err := open()
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Sendto(fd, []byte(text), unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
	})
	switch {
	case errors.Is(err, unix.ECONNREFUSED): // the holder has exited meanwhile
		err = ErrFree
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		err = ErrPrivilege
	}
	if err != nil {
		return fmt.Errorf("send message to holder of lock: %w", err)
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
