//go:build linux

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const threadNamespace = "/proc/thread-self/ns/net"

// namespace is a network namespace, which exists as long as its descriptor and the sockets opened in it.
type namespace struct {
	fd    int
	links *netlink.Handle
}

// sysctls are set in every namespace before its first link: all hosts forward, duplicate address
// detection is off, paths may be asymmetric, and ICMP errors are not rate-limited.
var sysctls = [...][2]string{
	{"net/ipv4/ip_forward", "1"},
	{"net/ipv4/conf/all/rp_filter", "0"},
	{"net/ipv4/conf/default/rp_filter", "0"},
	{"net/ipv4/conf/all/send_redirects", "0"},
	{"net/ipv4/conf/default/send_redirects", "0"},
	{"net/ipv4/conf/all/route_localnet", "0"},
	{"net/ipv4/conf/default/route_localnet", "0"},
	{"net/ipv4/icmp_ratelimit", "0"},
	{"net/ipv4/icmp_ratemask", "0"},
	{"net/ipv4/tcp_tw_reuse", "1"}, // otherwise tests run out of ports
	{"net/ipv4/ping_group_range", "0 0"},
	{"net/ipv6/conf/all/disable_ipv6", "0"},
	{"net/ipv6/conf/default/disable_ipv6", "0"},
	{"net/ipv6/conf/all/forwarding", "1"},
	{"net/ipv6/conf/default/accept_dad", "0"},
	{"net/ipv6/conf/default/accept_ra", "0"},
	{"net/ipv6/icmp/ratelimit", "0"},
	{"net/ipv6/icmp/ratemask", "2"}, // an empty mask cannot be written
}

// newNamespace creates a namespace with lo up.
func newNamespace() (*namespace, error) {
	runtime.LockOSThread()
	home, err := currentNamespace()
	if err != nil {
		return nil, err
	}
	defer home.close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, namespaceError(err)
	}
	n, err := currentNamespace()
	if err != nil {
		return nil, err // the thread is still locked, so it ends with its goroutine
	}
	if err := home.enter(); err != nil {
		n.close()
		return nil, err
	}
	runtime.UnlockOSThread()
	if err := n.prepare(); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// mountNamespace mounts a namespace in /run/netns until the test ends, as container runtimes do. Mode ebpf finds pods
// there, or by their processes.
func mountNamespace(t T, fd int) {
	t.Helper()
	const dir = "/run/netns"
	err := os.MkdirAll(dir, 0o755)
	var file *os.File
	if err == nil {
		file, err = os.CreateTemp(dir, "pod-")
	}
	if err != nil {
		t.Fatalf("make a file for a namespace: %v", err)
	}
	_ = file.Close() // nothing was written to it
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), file.Name(), "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("mount a namespace: %v", err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(file.Name(), unix.MNT_DETACH) // /run is gone with the process in any case
		_ = os.Remove(file.Name())
	})
}

// currentNamespace returns the namespace of the calling thread.
func currentNamespace() (*namespace, error) {
	fd, err := unix.Open(threadNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	return &namespace{fd: fd}, nil
}

func (n *namespace) enter() error {
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// do runs f on a thread that is in the namespace. Sockets and processes that f creates stay in
// it; goroutines that f starts do not run in it.
func (n *namespace) do(f func() error) error {
	runtime.LockOSThread()
	back, err := currentNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer back.close()
	if err := n.enter(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		if back.enter() == nil {
			runtime.UnlockOSThread() // otherwise the thread must end with the goroutine
		}
	}()
	return f()
}

// prepare sets the sysctls, opens netlink and brings lo up.
func (n *namespace) prepare() error {
	err := n.do(func() error {
		if err := writeSysctls(); err != nil {
			return err
		}
		var err error
		n.links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare network namespace: %w", err)
	}
	lo, err := n.links.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := n.links.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}

func writeSysctls() error {
	for _, s := range sysctls {
		if err := writeSysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	return nil
}

func writeSysctl(path, value string) error {
	err := os.WriteFile("/proc/sys/"+path, []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(path, "net/ipv6/") {
		return fmt.Errorf("IPv6 is disabled in this kernel (ipv6.disable=1?): %w", err)
	}
	if err != nil {
		return fmt.Errorf("set sysctl: %w", err)
	}
	return nil
}

func (n *namespace) close() {
	if n.links != nil {
		n.links.Close()
	}
	_ = unix.Close(n.fd)
}
