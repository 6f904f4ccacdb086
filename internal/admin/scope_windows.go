package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// ErrNotRunning means that no daemon runs that this user may ask.
var ErrNotRunning = errors.New("no Sluice of this user is running, nor one that serves this machine; " +
	"run the command as the user who started it, or on the machine itself")

// ErrPrivilege is an error of Listen: this process may not serve the machine.
var ErrPrivilege = errors.New("missing privilege: the lock of the daemon belongs to administrators and LocalSystem; " +
	"run as an administrator, or with --bind=loopback")

var (
	// errNotRoot means that this process may not query the daemon.
	errNotRoot = errors.New("only administrators and LocalSystem may ask the Sluice of this machine: " +
		"run as an administrator")
	// errForeign means that another user has the name that is for this one.
	errForeign = errors.New("another user of this machine holds the lock of this user")

	errNoHandover = errors.New("hand over the lock: not possible on this system")
)

// scope is the owner of a lock: the machine or a user. The process that has made the first instance of a named pipe
// holds the lock, and answers there. The pipe exists while its holder runs, in whatever way it ends.
//
// The pipe is made by system calls, not by github.com/Microsoft/go-winio: in Wine 8, the Windows of the
// tests, clients of its listener are connected to an instance that nobody serves.
type scope struct {
	serves string // completes "another Sluice already serves"
	pipe   string
	access string       // the users that may use the pipe, and no others
	owner  *windows.SID // of the pipe of this user; nil if other users cannot make a pipe of this name

	free, locked, closed error // nobody has the lock; this process may not take it; nor ask its holder
}

func (o Options) scope() (scope, error) {
	if o.User {
		return user()
	}
	return machine(), nil
}

// machine is the scope of a daemon that changes this machine. Only administrators may make pipes with this prefix, so
// that no other user takes the name first.
func machine() scope {
	return scope{
		serves: "this machine", pipe: `\\.\pipe\ProtectedPrefix\Administrators\Sluice`,
		access: "D:P(A;;GA;;;BA)(A;;GA;;;SY)",
		free:   ErrNotRunning, locked: ErrPrivilege, closed: errNotRoot,
	}
}

// user is the scope of the user who runs this process.
func user() (scope, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return scope{}, fmt.Errorf("identify the user: %w", err)
	}
	sid := user.User.Sid
	return scope{
		serves: "this user of this machine", pipe: `\\.\pipe\Sluice-` + sid.String(),
		access: fmt.Sprintf("O:%[1]vD:P(A;;GA;;;%[1]v)", sid), owner: sid,
		free: errNoUserDaemon, locked: errForeign, closed: errForeign,
	}, nil
}

// acquire takes the lock without waiting. The error is errHeld if another process has it.
func (s scope) acquire() (lock, error) {
	first, err := s.instance(windows.FILE_FLAG_FIRST_PIPE_INSTANCE)
	if err == nil {
		l, err := newPipeListener(s, first)
		return lock{l}, err
	}
	if s.held() == nil {
		return lock{}, errHeld
	}
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return lock{}, s.locked
	}
	return lock{}, err
}

func (scope) adopt(file *os.File) (lock, error) {
	return lock{}, errors.Join(errNoHandover, file.Close())
}

// held returns nil if a process has the lock.
func (s scope) held() error {
	h, err := s.open()
	switch {
	case errors.Is(err, windows.ERROR_PIPE_BUSY):
		return nil
	case err != nil:
		return err
	}
	return windows.CloseHandle(h)
}

// pid returns the PID of the holder.
func (scope) pid(id Identity) int { return id.PID }

// busyPause is the time between two attempts to connect to a holder that is busy.
const busyPause = 10 * time.Millisecond

// dial connects to the holder of the lock. It waits while the holder is busy.
func (s scope) dial(ctx context.Context) (net.Conn, error) {
	for {
		h, err := s.open()
		switch {
		case err == nil:
			return s.conn(h), nil
		case !errors.Is(err, windows.ERROR_PIPE_BUSY):
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, &UnansweredError{}
		case <-time.After(busyPause):
		}
	}
}

// lock is a lock with its pipe. Closing one closes both.
type lock struct{ *pipeListener }

// duplicate returns an error: no other process inherits the lock.
func (lock) duplicate() (*os.File, error) { return nil, errNoHandover }

func (l lock) listen(context.Context) (net.Listener, error) { return l.pipeListener, nil }
