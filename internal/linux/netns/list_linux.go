package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	rtnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace.
type Namespace struct {
	Cookie   uint64
	Attached bool         // a link of it has its peer, or its lower device, in the namespace of the node
	Addrs    []netip.Addr // of links that are up, except loopback and link-local ones
}

// Namespaces lists the network namespaces of processes and mounts, except the namespace of the node (a file
// descriptor; 0: the current one). It takes some 0.3 ms for each.
func Namespaces(ctx context.Context, node int) ([]Namespace, error) {
	if node == 0 {
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open the network namespace of the node: %w", err)
		}
		defer func() { _ = unix.Close(fd) }() // it was only entered
		node = fd
	}
	var all []Namespace
	var failed []error
	first := true
	err := Visit(node, []Paths{OfProcesses, OfMounts}, func() bool { return ctx.Err() != nil }, func(cookie uint64) {
		if first { // that of the node
			first = false
			return
		}
		n, err := describe(node)
		if err != nil {
			failed = append(failed, fmt.Errorf("network namespace %d: %w", cookie, err))
			return
		}
		n.Cookie = cookie
		all = append(all, n)
	})
	return all, errors.Join(append(failed, err, ctx.Err())...)
}

// WatchLinks is Watch for changes of links.
func WatchLinks(ctx context.Context, node int, changed func()) error {
	return Watch(ctx, node, func() error { changed(); return nil }, unix.RTNLGRP_LINK)
}

// Watch calls a function once it notices changes, and after each change that groups of route netlink
// (unix.RTNLGRP_LINK ...) report in a network namespace (a file descriptor; 0: the current one). Changes during a call
// cause one further call. It returns the error of the function, or nil when the context ends.
func Watch(ctx context.Context, node int, changed func() error, groups ...uint32) error {
	events, err := rtnetlink.Dial(unix.NETLINK_ROUTE, &rtnetlink.Config{NetNS: node})
	if err != nil {
		return fmt.Errorf("open route netlink: %w", err)
	}
	defer func() { _ = events.Close() }() // wakes listen
	for _, group := range groups {
		if err := events.JoinGroup(group); err != nil {
			return fmt.Errorf("subscribe to group %d of route netlink: %w", group, err)
		}
	}
	dirty, failed := make(chan struct{}, 1), make(chan error, 1)
	go func() { failed <- listen(events, dirty) }()
	for {
		if err := changed(); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-dirty:
		}
	}
}

// listen sends to dirty after each message, and after the kernel dropped messages.
func listen(events *rtnetlink.Conn, dirty chan<- struct{}) error {
	for {
		_, err := events.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("wait for messages of route netlink: %w", err)
		}
		select {
		case dirty <- struct{}{}:
		default:
		}
	}
}

// describe describes the current network namespace.
func describe(node int) (n Namespace, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return n, err
	}
	defer h.Close()
	links, err := List(context.Background(), h.LinkList) // which gives the namespaces of peers a number here
	if err != nil {
		return n, fmt.Errorf("list links: %w", err)
	}
	id, err := h.GetNetNsIdByFd(node) // -1: the node has no number here
	if err != nil {
		return n, fmt.Errorf("find the namespace of the node: %w", err)
	}
	for _, l := range links {
		n.Attached = n.Attached || id >= 0 && l.Attrs().NetNsID == id
	}
	addrs, err := List(context.Background(), func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return n, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && addr.Unmap().IsGlobalUnicast() {
			n.Addrs = append(n.Addrs, addr.Unmap())
		}
	}
	return n, nil
}

// Paths list where network namespaces can be opened.
type Paths func() []string

// Visit runs a function in each network namespace, on a thread in it, until done: in the namespace of the node (a
// file descriptor; 0: the current one), and in the namespaces at some paths. The function gets the cookie of the
// namespace (SO_NETNS_COOKIE). Namespaces that disappear meanwhile, or that this process cannot enter, are left out.
func Visit(node int, paths []Paths, done func() bool, do func(cookie uint64)) error {
	// seen is by the inode of a path, entered by cookie: processes are in the namespace of the node, too.
	seen, entered := map[uint64]bool{}, map[uint64]bool{}
	enter := func(fd int) error {
		return Do(fd, func() error {
			cookie, err := Cookie()
			if err == nil && !entered[cookie] {
				entered[cookie] = true
				do(cookie)
			}
			return err
		})
	}
	if err := enter(node); err != nil || done() {
		return err
	}
	for _, list := range paths {
		for _, path := range list() {
			if done() {
				return nil
			}
			var stat unix.Stat_t
			if unix.Stat(path, &stat) != nil || seen[stat.Ino] {
				continue
			}
			seen[stat.Ino] = true
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				continue // the process has ended
			}
			_ = enter(fd) // it cannot be entered
			_ = unix.Close(fd)
		}
	}
	return nil
}

// OfProcesses are the namespaces of processes.
func OfProcesses() []string { return glob("/proc/[0-9]*/ns/net") }

// OfThreads are the namespaces of threads.
func OfThreads() []string { return glob("/proc/[0-9]*/task/[0-9]*/ns/net") }

func glob(pattern string) []string {
	list, _ := filepath.Glob(pattern) // the pattern is a valid one
	return list
}

// OfMounts are the namespaces that are mounted, as those in /run/netns.
func OfMounts() (list []string) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // it was only read from
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) > 4 && strings.HasPrefix(words[3], "net:[") && strings.Contains(lines.Text(), " - nsfs ") {
			list = append(list, words[4])
		}
	}
	return list
}

// Cookie returns the cookie of the current network namespace, by which programs of the kernel identify it.
func Cookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// SeesAll reports whether this process sees all processes in a cgroup and below, and so their network namespaces:
// those in other PID namespaces have the number 0.
func SeesAll(cgroup string) bool {
	all := true
	_ = filepath.WalkDir(cgroup, func(path string, entry os.DirEntry, err error) error { // cgroups come and go
		if err != nil || !entry.IsDir() {
			return nil
		}
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err == nil && strings.Contains("\n"+string(b), "\n0\n") {
			all = false
			return filepath.SkipAll
		}
		return nil
	})
	return all
}
