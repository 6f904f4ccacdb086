package iptables

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

// lockPoll is the period of attempts to take a held lock; iptables tries each second.
const lockPoll = 20 * time.Millisecond

// waitForLock waits while one process holds the lock, for a limited time. It does
// not take the lock: the program takes it, and can be cancelled only before it
// starts. It returns early when the holder changes, because a program waits in a
// queue, and waitForLock does not. The error is that of a context that ended.
func waitForLock(ctx context.Context, path string, atMost time.Duration) error {
	first, held := lockHolder(path)
	now := first
	for end := time.Now().Add(atMost); held && now == first && time.Now().Before(end); now, held = lockHolder(path) {
		if err := pause(ctx); err != nil {
			return fmt.Errorf("wait for lock %s: %w", path, err)
		}
	}
	return nil
}

// pause waits until the next attempt.
func pause(ctx context.Context) error {
	timer := time.NewTimer(lockPoll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// holder is a process that holds the lock. Both fields are empty if the process is
// in another PID namespace, which /proc/locks does not show (proc(5)).
type holder struct {
	PID     int
	Program string
}

// String names the process: "held by iptables (process 812)".
func (h holder) String() string {
	switch {
	case h.PID == 0:
		return "held by another process"
	case h.Program == "":
		return fmt.Sprintf("held by process %d", h.PID)
	}
	return fmt.Sprintf("held by %s (process %d)", h.Program, h.PID)
}

// lockHolder returns the process that holds the lock file; held is false if there is none,
// or no such file.
func lockHolder(path string) (h holder, held bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return holder{}, false
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return holder{}, false
	}
	if h = holderOf(stat); h.PID != 0 {
		return h, true
	}
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) // closing releases it
	return holder{}, errors.Is(err, unix.EWOULDBLOCK)
}

func holderOf(file unix.Stat_t) holder {
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return holder{}
	}
	h := holder{
		PID: locker(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(file.Dev), unix.Minor(file.Dev), file.Ino)),
	}
	if h.PID == 0 {
		return holder{}
	}
	if program, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.PID)); err == nil {
		h.Program = strings.TrimSpace(string(program))
	}
	return h
}

// locker returns the process that has locked a file, given by device and inode; 0 if it
// is not listed. A line is "1: FLOCK ADVISORY WRITE 52 00:1a:7 0 EOF",
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
