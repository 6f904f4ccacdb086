package netns

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

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
