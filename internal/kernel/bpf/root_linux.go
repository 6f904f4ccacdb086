package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is the root of cgroup v2.
type Root struct {
	Path  string
	mount *os.File // nil if it was mounted already
}

// FindRoot returns the root of cgroup v2, wherever that is mounted. If it is not, FindRoot mounts it where no process sees
// it; that ends when the Root is closed. Processes that this one executes have to find it themselves.
func FindRoot() (*Root, error) {
	path, err := mountedRoot()
	if err != nil || path != "" {
		return &Root{Path: path}, err
	}
	fd, err := mountRoot()
	if err != nil {
		return nil, fmt.Errorf("%w, and cannot be mounted: %w", ErrNoCgroup, err)
	}
	// The last part makes it a folder also for callers that do not follow links.
	return &Root{fmt.Sprintf("/proc/self/fd/%d/.", fd), os.NewFile(uintptr(fd), "cgroup2")}, nil
}

// Private reports whether only this process sees the mount.
func (r *Root) Private() bool { return r.mount != nil }

// Close undoes the mount, if there was none.
func (r *Root) Close() error {
	if r.mount == nil {
		return nil
	}
	return r.mount.Close()
}

// mountedRoot returns where cgroup v2 is mounted; "" if it is not. A container may have its own cgroups, and those of the host
// at another place.
func mountedRoot() (path string, err error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read from
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) <= 4 || !strings.Contains(lines.Text(), " - cgroup2 ") {
			continue
		}
		if at := unescape(words[4]); path == "" || rank(at) > rank(path) {
			path = at
		}
	}
	return path, lines.Err()
}

// rank says how good a mount of cgroup v2 is: the root of all is better than one of some, and then one that is writable.
func rank(path string) int {
	n := 0
	if Whole(path) == nil {
		n += 2
	}
	if unix.Access(path, unix.W_OK) == nil {
		n++
	}
	return n
}

// unescape undoes how the kernel writes paths with spaces.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// mountRoot mounts cgroup v2 without a place, and returns the file descriptor of the mount. A mount from the first cgroup
// namespace would set the flags of the machine's cgroups, such as nsdelegate, to its own: so a thread leaves that
// after it has chosen the root to mount, and ends.
func mountRoot() (fd int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var context int
		if context, err = unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC); err != nil {
			return
		}
		defer func() { _ = unix.Close(context) }() // the mount stays
		if err = errors.Join(unix.Unshare(unix.CLONE_NEWCGROUP), unix.FsconfigCreate(context)); err != nil {
			return
		}
		fd, err = unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	}()
	<-done
	return fd, err
}
