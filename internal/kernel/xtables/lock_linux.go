package xtables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// poll is how often a lock that is held is tried; iptables tries each second.
const poll = 20 * time.Millisecond

// lock takes the lock that users of the legacy variant hold while they change a
// table, and returns what gives it back. Where the file cannot be opened, in a
// container without the host's /run, there is none.
func lock(ctx context.Context, opts Options) (unlock func(), err error) {
	fd, err := unix.Open(opts.Lock, unix.O_RDONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return func() {}, nil
	}
	unlock = func() { _ = unix.Close(fd) }
	ctx, stop := context.WithTimeoutCause(ctx, opts.Wait, errStillLocked)
	defer stop()
	for {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return unlock, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		if err = pause(ctx); err != nil {
			break
		}
	}
	if errors.Is(err, errStillLocked) {
		err = fmt.Errorf("%s after %s", holder(fd), opts.Wait)
	}
	unlock()
	return nil, fmt.Errorf("lock %s: %w", opts.Lock, err)
}

var errStillLocked = errors.New("held by another process")

// pause waits until it is time for another try.
func pause(ctx context.Context) error {
	timer := time.NewTimer(poll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// holder says who holds the lock, as far as can be told: /proc/locks shows
// processes of our own PID namespace only (proc(5)).
func holder(fd int) string {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return errStillLocked.Error()
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return errStillLocked.Error()
	}
	pid := locker(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino))
	if pid == 0 {
		return errStillLocked.Error()
	}
	program, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("held by process %d", pid)
	}
	return fmt.Sprintf("held by %s (process %d)", strings.TrimSpace(string(program)), pid)
}

// locker finds the process that has locked a file, named by device and inode;
// 0 if it is not to be seen. A line is "1: FLOCK ADVISORY WRITE 52 00:1a:7 0 EOF",
// with "->" after the number if the process waits.
func locker(locks, file string) int {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}
