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

// hardshipVar tells this program to become another, once something holds for it.
const hardshipVar = "SLUICE_ENDURANCE_HARDSHIP"

// The hardships.
const (
	readOnly  = "read-only" // needs a mount namespace of its own
	powerless = "powerless" // without CAP_NET_ADMIN
	inCgroup  = "cgroup "   // and the folder of one
	ownLock   = "lock "     // and the file that is the lock of iptables; needs a mount namespace
	fewFiles  = "files "    // and how many file descriptors it may have
)

// become makes a hardship hold and becomes another program. It returns only if
// that cannot be.
func become(hardship string, argv []string) error {
	var err error
	switch {
	case hardship == readOnly:
		err = makeReadOnly()
	case hardship == powerless:
		err = unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_ADMIN, 0, 0, 0)
	case strings.HasPrefix(hardship, inCgroup):
		procs := filepath.Join(strings.TrimPrefix(hardship, inCgroup), "cgroup.procs")
		err = os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0o644)
	case strings.HasPrefix(hardship, ownLock):
		err = mountLock(strings.TrimPrefix(hardship, ownLock))
	case strings.HasPrefix(hardship, fewFiles):
		err = limitFiles(strings.TrimPrefix(hardship, fewFiles))
	default:
		err = errors.New("unknown")
	}
	if err != nil {
		return fmt.Errorf("hardship %q: %w", hardship, err)
	}
	if err := os.Unsetenv(hardshipVar); err != nil {
		return err
	}
	return fmt.Errorf("become %s: %w", argv[0], syscall.Exec(argv[0], argv[1:], os.Environ()))
}

// limitFiles sets how many file descriptors a process may have.
func limitFiles(text string) error {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return err
	}
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}) // of syscall: exec keeps it
}

// mountLock has a file be the lock that all programs of iptables take.
func mountLock(file string) error {
	const lock = "/run/xtables.lock"
	f, err := os.OpenFile(lock, os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), unix.Mount(file, lock, "", unix.MS_BIND, ""))
}

// makeReadOnly makes everything that is mounted read-only, and makes sure of it.
func makeReadOnly() error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("make all mounts read-only: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for _, dir := range []string{"/", "/tmp", "/run", "/dev/shm", "/proc/sys/net/ipv4", os.TempDir()} {
		name := filepath.Join(dir, "sluice-was-here")
		if err := os.WriteFile(name, nil, 0o644); err == nil {
			return fmt.Errorf("%s can be written", name)
		}
	}
	return nil
}
