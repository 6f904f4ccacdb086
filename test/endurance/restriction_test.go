//go:build linux

package endurance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// restrictionVar makes the test binary restrict itself and then execute another program.
const restrictionVar = "SLUICE_ENDURANCE_RESTRICTION"

// The restrictions.
const (
	readOnly   = "read-only" // all mounts; needs a new mount namespace
	noNetAdmin = "powerless" // without CAP_NET_ADMIN
	inCgroup   = "cgroup "   // + folder of a cgroup
	ownLock    = "lock "     // + file in place of the xtables lock; needs a new mount namespace
	fewFiles   = "files "    // + limit of file descriptors
)

// runRestricted applies a restriction to this process and executes another program. It returns only if it fails.
func runRestricted(restriction string, argv []string) error {
	var err error
	switch {
	case restriction == readOnly:
		err = makeReadOnly()
	case restriction == noNetAdmin:
		err = unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_ADMIN, 0, 0, 0)
	case strings.HasPrefix(restriction, inCgroup):
		procs := filepath.Join(strings.TrimPrefix(restriction, inCgroup), "cgroup.procs")
		err = os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0o644)
	case strings.HasPrefix(restriction, ownLock):
		err = mountLock(strings.TrimPrefix(restriction, ownLock))
	case strings.HasPrefix(restriction, fewFiles):
		err = limitFiles(strings.TrimPrefix(restriction, fewFiles))
	default:
		err = errors.New("unknown")
	}
	if err != nil {
		return fmt.Errorf("apply restriction %q: %w", restriction, err)
	}
	if err := os.Unsetenv(restrictionVar); err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", argv[0], syscall.Exec(argv[0], argv[1:], os.Environ()))
}

// limitFiles sets RLIMIT_NOFILE.
func limitFiles(text string) error {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return err
	}
	// The Go runtime restores a limit on exec unless package syscall has set it.
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n})
}

// mountLock mounts a file in place of the xtables lock.
func mountLock(file string) error {
	const lock = "/run/xtables.lock"
	f, err := os.OpenFile(lock, os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), unix.Mount(file, lock, "", unix.MS_BIND, ""))
}

// makeReadOnly makes all mounts read-only and verifies it. Only the folder of the socket of commands can be written
// to, as in pods.
func makeReadOnly() error {
	const sockets = "/run/sluice"
	if err := errors.Join(os.MkdirAll(sockets, 0o700), unix.Mount(sockets, sockets, "", unix.MS_BIND, "")); err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("make all mounts read-only: %w", err)
	}
	attr = unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, sockets, 0, &attr); err != nil {
		return fmt.Errorf("make %s writable: %w", sockets, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for _, dir := range []string{"/", "/tmp", "/run", "/dev/shm", "/proc/sys/net/ipv4", os.TempDir()} {
		name := filepath.Join(dir, "sluice-write-test")
		if err := os.WriteFile(name, nil, 0o644); err == nil {
			return fmt.Errorf("%s is writable", name)
		}
	}
	return nil
}
