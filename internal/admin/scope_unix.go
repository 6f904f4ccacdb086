//go:build unix

package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/handover"
)

// scope is the owner of a lock: a network namespace or a user. Commands reach the holder of the lock at a socket.
type scope struct {
	socket

	serves string // completes "another Sluice already serves"

	take func() (*os.File, error) // takes the lock without waiting: the file and its duplicates hold it
	held func() error             // nil: a process holds the lock
	pid  func(Identity) int       // of the holder; 0: unknown
}

func (s scope) acquire() (lock, error) {
	file, err := s.take()
	if err != nil {
		return lock{}, err
	}
	return lock{file, s.socket}, nil
}

func (s scope) adopt(file *os.File) (lock, error) { return lock{file, s.socket}, nil }

// lock is a lock that is held. Only its holder listens at the socket.
type lock struct {
	*os.File
	socket
}

func (l lock) duplicate() (*os.File, error) { return handover.Duplicate(l.File, l.Name()) }

func (l lock) beside(name string) string { return filepath.Join(l.folder, l.socket.name+"."+name) }

// socket is a unix socket in a folder of one user.
type socket struct{ folder, name string }

func (s socket) path() string { return filepath.Join(s.folder, s.name+".sock") }

// maxPath is the length of the longest path of a socket, in bytes. The kernel needs one for the end.
const maxPath = len(syscall.RawSockaddrUnix{}.Path) - 1

func (s socket) checkLength() error {
	if n := len(s.path()); n > maxPath {
		return fmt.Errorf("the path %s has %d bytes; the limit for a socket is %d", s.path(), n, maxPath)
	}
	return nil
}

// listen opens the socket in place of one that an earlier holder of the lock left. Commands find one of the two at any
// time. Close removes it; the lock is released later.
func (s socket) listen(ctx context.Context) (net.Listener, error) {
	if err := secure(s.folder); err != nil {
		return nil, fmt.Errorf("folder %s: %w", s.folder, err)
	}
	if err := s.checkLength(); err != nil {
		return nil, err
	}
	fresh := filepath.Join(s.folder, s.name+".new")
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", fresh)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it gets another name
	if err := os.Rename(fresh, s.path()); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(fresh))
	}
	return socketListener{l, s.path()}, nil
}

// socketListener is a net.Listener whose Close removes the socket.
type socketListener struct {
	net.Listener
	path string
}

func (l socketListener) Close() error {
	err := os.Remove(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.Listener.Close())
}

// secure makes a folder that only this user and root can enter.
func secure(folder string) error {
	if err := os.MkdirAll(folder, private); err != nil {
		return err
	}
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	if owner := int(info.Sys().(*syscall.Stat_t).Uid); owner != 0 && owner != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d; remove it", owner)
	}
	if info.Mode().Perm()&^private == 0 {
		return nil
	}
	return os.Chmod(folder, private)
}

// private is the mode of the folder.
const private = 0o700

// dialPause is the time between two attempts to connect to a daemon that does not listen yet.
const dialPause = 50 * time.Millisecond

// startTime is how long a daemon that has the lock may take to listen. One in a container with another folder never
// does.
const startTime = 5 * time.Second

// dial connects to the holder of the lock. If nobody listens, it tries again for startTime, until the context ends, or
// the lock is free.
func (s scope) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := s.checkLength(); err != nil {
		return nil, cmp.Or(s.held(), err)
	}
	var last error // of the attempt before, as the present one may end by the deadline
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", s.path())
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
			if errors.Is(last, fs.ErrNotExist) || errors.Is(last, syscall.ECONNREFUSED) {
				return nil, &UnansweredError{Socket: s.path()}
			}
			return nil, &UnansweredError{}
		case errors.Is(err, fs.ErrPermission):
			return nil, errNotRoot
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EAGAIN):
			return nil, err
		}
		if err := s.held(); err != nil {
			return nil, err
		}
		last = err
		select {
		case <-ctx.Done():
		case <-time.After(dialPause):
		}
	}
}

// user is the scope of the user who runs this process. Its lock is a file beside the socket that the system locks
// (flock), so that it is free as soon as its holder has ended, even by kill -9.
func user() (scope, error) {
	caches, err := os.UserCacheDir()
	if err != nil {
		return scope{}, fmt.Errorf("find a folder for the lock of the daemon: %w", err)
	}
	suffix, err := instance()
	if err != nil {
		return scope{}, err
	}
	s := socket{filepath.Join(caches, "sluice"+suffix), "control"}
	name := filepath.Join(s.folder, "lock")
	return scope{
		serves: "this user of this machine", socket: s,
		take: func() (*os.File, error) {
			if err := secure(s.folder); err != nil {
				return nil, fmt.Errorf("folder %s: %w", s.folder, err)
			}
			return openLocked(name, os.O_RDWR|os.O_CREATE, unix.LOCK_EX)
		},
		held: func() error {
			file, err := openLocked(name, os.O_RDONLY, unix.LOCK_SH)
			switch {
			case err == nil:
				return errors.Join(errNoUserDaemon, file.Close())
			case errors.Is(err, fs.ErrNotExist):
				return errNoUserDaemon
			case errors.Is(err, errHeld):
				return nil
			}
			return err
		},
		pid: func(id Identity) int { return id.PID },
	}, nil
}

// openLocked opens a file and locks it, for one process or for all that share it. It does not wait: the error is
// errHeld if another process keeps it from that.
func openLocked(name string, flag, how int) (*os.File, error) {
	file, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	err = unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errHeld
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), file.Close())
	}
	return file, nil
}
