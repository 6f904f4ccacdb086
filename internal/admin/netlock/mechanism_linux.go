package netlock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// mechanism is a netfilter subsystem that binds group or queue numbers to netlink sockets.
type mechanism struct {
	name    string
	kind    uint16 // type of the message that binds
	command []byte // attribute with the bind command: length, type, value
	list    string // file with the number and port of each bound socket
}

// mechanisms returns the mechanisms that can provide the lock, the preferred first. Most
// kernels have NFLOG.
func mechanisms() []mechanism {
	const (
		folder = "/proc/thread-self/net/netfilter/"

		logConfig, queueConfig = 1, 2 // NFULNL_MSG_CONFIG, NFQNL_MSG_CONFIG
		configCommand          = 1    // NFULA_CFG_CMD, NFQA_CFG_CMD
		commandBind            = 1    // NFULNL_CFG_CMD_BIND, NFQNL_CFG_CMD_BIND
	)
	return []mechanism{
		{
			"NFLOG group", unix.NFNL_SUBSYS_ULOG<<8 | logConfig, attribute(configCommand, commandBind),
			folder + "nfnetlink_log",
		},
		{
			"NFQUEUE queue", unix.NFNL_SUBSYS_QUEUE<<8 | queueConfig, attribute(configCommand, commandBind, 0, 0, 0),
			folder + "nfnetlink_queue",
		},
	}
}

// attribute encodes a netlink attribute of up to four bytes.
func attribute(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(append(b, value...), make([]byte, 4-len(value))...)
}

// acquire binds the number to a socket, or returns the reason why it cannot.
func (m mechanism) acquire(fd int) error {
	const tries = 3 // the holder may close its socket between the refusal and the listing
	for range tries {
		err := m.bind(fd)
		if err == nil || errors.Is(err, ErrUnsupported) {
			return err
		}
		if !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("bind %s %d: %w", m.name, Number, err)
		}
		_, err = m.holder()
		if err == nil {
			return ErrHeld
		}
		if !errors.Is(err, ErrFree) {
			return err
		}
	}
	return ErrPrivilege
}

// maxAnswer is more than the kernel answers, in bytes.
const maxAnswer = 1024

// bind binds the number to a socket. The error is EPERM if another socket has the number, or if this process may not
// bind any.
func (m mechanism) bind(fd int) error {
	const headers = unix.SizeofNlMsghdr + 4 // struct nfgenmsg
	request := append(header(headers+len(m.command), m.kind), m.command...)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for { // the kernel has answered already; another process may have sent a message as well
		answer := make([]byte, maxAnswer)
		n, from, err := unix.Recvfrom(fd, answer, 0)
		if err != nil {
			return fmt.Errorf("read answer of the kernel: %w", err)
		}
		if sender, is := from.(*unix.SockaddrNetlink); is && sender.Pid == 0 && n >= unix.SizeofNlMsghdr+4 {
			return result(answer)
		}
	}
}

// result returns the error in an acknowledgement.
func result(answer []byte) error {
	code := -int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:]))
	switch errno := unix.Errno(code); errno {
	case 0:
		return nil
	case unix.EINVAL, unix.EOPNOTSUPP: // the subsystem is missing and its module cannot be loaded
		return ErrUnsupported
	default:
		return errno
	}
}

// holder returns the netlink port of the socket that has the number, or ErrFree.
func (m mechanism) holder() (uint32, error) {
	text, err := os.ReadFile(m.list)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, ErrFree // the kernel lacks it, or did not load the module
	}
	if errors.Is(err, fs.ErrPermission) {
		return 0, ErrPrivilege
	}
	if err != nil {
		return 0, fmt.Errorf("read holder of lock: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != strconv.Itoa(Number) {
			continue
		}
		port, err := strconv.ParseUint(fields[1], 10, 32)
		if err != nil {
			return 0, fmt.Errorf("read holder of lock: %w", err)
		}
		return uint32(port), nil
	}
	return 0, ErrFree
}

// holder returns the netlink port of the holder of the lock, or ErrFree.
func holder() (uint32, error) {
	for _, m := range mechanisms() {
		port, err := m.holder()
		if !errors.Is(err, ErrFree) {
			return port, err
		}
	}
	return 0, ErrFree
}

// Socket returns the inode of the holder's socket, by which its process can be
// found; ErrFree if there is no holder.
func Socket(o Options) (inode uint64, err error) {
	err = netns.Do(o.NetNS, func() error {
		port, err := holder()
		if err != nil {
			return err
		}
		text, err := os.ReadFile("/proc/thread-self/net/netlink")
		if err != nil {
			return fmt.Errorf("list netlink sockets: %w", err)
		}
		for line := range strings.Lines(string(text)) { // sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
			f := strings.Fields(line)
			if len(f) == 10 && f[1] == strconv.Itoa(unix.NETLINK_NETFILTER) && f[2] == strconv.FormatUint(uint64(port), 10) {
				inode, err = strconv.ParseUint(f[9], 10, 64)
				return err
			}
		}
		return ErrFree
	})
	return inode, err
}
