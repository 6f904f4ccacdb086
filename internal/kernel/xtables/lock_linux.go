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

// AwaitLock waits while one process holds the lock, at most for a while. It does
// not take the lock: a program that does is told apart from one that writes only
// before it starts, when it may still be given up. It returns early when the
// holder changes, as a program waits in a queue, which this does not. The error
// is that of a context that ended.
func (k *Kernel) AwaitLock(ctx context.Context, atMost time.Duration) error {
	first, held := LockHolder(k.opts.Lock)
	now := first
	for end := time.Now().Add(atMost); held && now == first && time.Now().Before(end); now, held = LockHolder(k.opts.Lock) {
		if err := pause(ctx); err != nil {
			return fmt.Errorf("wait for lock %s: %w", k.opts.Lock, err)
		}
	}
	return nil
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

// holder says who holds the lock, as far as can be told.
func holder(fd int) string {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return errStillLocked.Error()
	}
	return holderOf(stat).String()
}

// Holder is a process that holds the lock. Both are empty if it cannot be seen:
// /proc/locks shows processes of our own PID namespace only (proc(5)).
type Holder struct {
	PID     int
	Program string
}

// String says who it is: "held by iptables (process 812)".
func (h Holder) String() string {
	switch {
	case h.PID == 0:
		return errStillLocked.Error()
	case h.Program == "":
		return fmt.Sprintf("held by process %d", h.PID)
	}
	return fmt.Sprintf("held by %s (process %d)", h.Program, h.PID)
}

// LockHolder says who holds the lock file; held is false if nobody does, or if
// there is no such file.
func LockHolder(path string) (h Holder, held bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Holder{}, false
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return Holder{}, false
	}
	if h = holderOf(stat); h.PID != 0 {
		return h, true
	}
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) // closing gives it back
	return Holder{}, errors.Is(err, unix.EWOULDBLOCK)
}

func holderOf(file unix.Stat_t) Holder {
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return Holder{}
	}
	h := Holder{PID: locker(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(file.Dev), unix.Minor(file.Dev), file.Ino))}
	if h.PID == 0 {
		return Holder{}
	}
	if program, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.PID)); err == nil {
		h.Program = strings.TrimSpace(string(program))
	}
	return h
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
