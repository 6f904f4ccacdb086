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

// FindRoot returns the root of cgroup v2, wherever that is mounted. If it is not mounted, FindRoot mounts it for this process alone, until
// the Root is closed. Child processes do not inherit the mount.
func FindRoot() (*Root, error) {
	path, err := MountedRoot()
	if err != nil || path != "" {
		return &Root{Path: path}, err
	}
	fd, err := mountRoot()
	if err != nil {
		return nil, fmt.Errorf("%w, and cannot be mounted: %w", ErrNoCgroup, err)
	}
	// The last dot makes the path a folder also for callers that do not follow links.
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

// MountedRoot returns where cgroup v2 is mounted; "" if it is not. A container may have its own cgroups, and those of the host
// at another place.
func MountedRoot() (path string, err error) {
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

// rank orders mounts of cgroup v2, the best one highest: the root of all cgroups first, then a writable mount.
func rank(path string) int {
	n := 0
	if VerifyRoot(path) == nil {
		n += 2
	}
	if unix.Access(path, unix.W_OK) == nil {
		n++
	}
	return n
}

// unescape decodes the octal escapes in paths of mountinfo.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// mountRoot creates a mount of cgroup v2 without a mount point, and returns its file descriptor. A mount from the initial cgroup
// namespace would change the mount options of the host, such as nsdelegate. So a thread opens the file system there, enters
// a cgroup namespace of its own to create the mount, and ends.
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
