package admin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/handover"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/process"
)

// The lock of a network namespace is an NFLOG group, which no rule uses. The kernel binds a group to one netlink
// socket, only for a process with CAP_NET_ADMIN over the namespace, and releases it when the socket is closed, even by
// kill -9. It lists the port of that socket. Other processes can neither take the lock nor make it look free. No file
// is needed (docs/decisions/0016-the-lock-of-a-network-namespace.md).

// group is the NFLOG group, "SL" in ASCII.
const group = 0x534c

// ErrNotRunning means that no daemon serves the network namespace.
var ErrNotRunning = errors.New("no Sluice is running in this network namespace; " +
	"run the command where the daemon runs: with kubectl exec in the Sluice pod, " +
	"on the node if it is a program of the node, with ip netns exec NAME, or as the user whose daemon it is")

// errNotRoot means that this process may not query the daemon.
var errNotRoot = errors.New("only root may ask the daemon: " +
	"run as root, for example with sudo, or with kubectl exec in the Sluice pod")

// ErrPrivilege is an error of Listen: this process may neither hold the lock nor change rules.
var ErrPrivilege = errors.New("missing privilege: the lock of the daemon needs CAP_NET_ADMIN " +
	"in this network namespace; run as root, or give the container this capability")

// folder has the sockets of all network namespaces, as containers may share it.
const folder = "/run/sluice"

func (o Options) scope() (scope, error) {
	if o.User {
		return user()
	}
	number, err := netns.Inode(o.NetNS)
	if err != nil {
		return scope{}, err
	}
	return scope{
		serves: "this network namespace", socket: socket{folder, strconv.FormatUint(number, 10)},
		take: func() (*os.File, error) { return bindGroup(o.NetNS, unix.NFNL_SUBSYS_ULOG) },
		held: func() error { _, err := holderSocket(o.NetNS); return err },
		pid: func(Identity) int { // that of the Identity may be from another PID namespace
			inode, err := holderSocket(o.NetNS)
			if err != nil {
				return 0
			}
			pid, _ := process.New().WithSocket(inode) // 0: no process is visible
			return pid
		},
	}, nil
}

// bindGroup binds the group of a netfilter subsystem to a netlink socket, and returns the socket.
func bindGroup(ns int, subsystem uint16) (*os.File, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, ErrUnsupported
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink socket of netfilter: %w", err)
	}
	defer func() { _ = conn.Close() }() // the file is a duplicate
	const tries = 3                     // the holder may close its socket between the refusal and the listing
	for range tries {
		err = sendBind(conn, subsystem)
		if err == nil {
			return handover.Duplicate(conn, "netlink")
		}
		if !errors.Is(err, unix.EPERM) {
			return nil, err
		}
		_, err = holderSocket(ns)
		if err == nil {
			return nil, errHeld
		}
		if !errors.Is(err, ErrNotRunning) {
			break
		}
	}
	return nil, ErrPrivilege
}

// sendBind requests the group. The error is EPERM if another socket has it, or if this process may not bind any.
func sendBind(conn *netlink.Conn, subsystem uint16) error {
	const configMessage, commandAttribute, bind = 1, 1, 1 // NFULNL_MSG_CONFIG, NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND
	command, _ := netlink.MarshalAttributes([]netlink.Attribute{{Type: commandAttribute, Data: []byte{bind}}})
	header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, group) // struct nfgenmsg
	_, err := conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type: netlink.HeaderType(subsystem<<8 | configMessage), Flags: netlink.Request | netlink.Acknowledge,
		},
		Data: slices.Concat(header, command),
	})
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP): // its module is missing
		return ErrUnsupported
	case err != nil:
		return fmt.Errorf("bind NFLOG group %d: %w", group, err)
	}
	return nil
}

// holderSocket returns the inode of the socket that has the group. The error is ErrNotRunning if there is none, and
// errNotRoot if this process may not know.
func holderSocket(ns int) (inode uint64, err error) {
	err = netns.Do(ns, func() error {
		port, err := lookUp("/proc/thread-self/net/netfilter/nfnetlink_log", 1, map[int]uint64{0: group})
		if err != nil {
			return err
		}
		// sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		inode, err = lookUp("/proc/thread-self/net/netlink", 9, map[int]uint64{1: unix.NETLINK_NETFILTER, 2: port})
		return err
	})
	return inode, err
}

// lookUp returns the number in a column of a table in /proc, of the line that has these numbers in columns before it.
func lookUp(table string, column int, with map[int]uint64) (uint64, error) {
	text, err := os.ReadFile(table)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, ErrNotRunning // the kernel has not loaded the module: no process needed it
	case errors.Is(err, fs.ErrPermission):
		return 0, errNotRoot
	case err != nil:
		return 0, fmt.Errorf("find the holder of the lock: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		found := len(fields) > column
		for at, want := range with {
			found = found && fields[at] == strconv.FormatUint(want, 10)
		}
		if found {
			return strconv.ParseUint(fields[column], 10, 64)
		}
	}
	return 0, ErrNotRunning
}
