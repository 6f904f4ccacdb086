package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
	"unsafe"

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

// scope is the owner of a lock: the machine or a user. The lock is a named mutex, and its holder answers at a named
// pipe. Both exist while their holder runs, in whatever way it ends. (The pipe alone is no lock in Wine 8, the Windows
// of the tests, which lets several processes make its first instance.)
//
// The pipe is made by system calls, not by github.com/Microsoft/go-winio: in Wine 8, clients of its listener are
// connected to an instance that nobody serves.
type scope struct {
	serves string // completes "another Sluice already serves"
	mutex  string
	pipe   string
	access string       // the users that may use both, and no others
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
		serves: "this machine", mutex: `Global\Sluice`, pipe: `\\.\pipe\ProtectedPrefix\Administrators\Sluice`,
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
	suffix, err := instance()
	if err != nil {
		return scope{}, err
	}
	return scope{
		serves: "this user of this machine",
		mutex:  `Global\Sluice-` + sid.String() + suffix, pipe: `\\.\pipe\Sluice-` + sid.String() + suffix,
		access: fmt.Sprintf("O:%[1]vD:P(A;;GA;;;%[1]v)", sid), owner: sid,
		free: errNoUserDaemon, locked: errForeign, closed: errForeign,
	}, nil
}

// acquire takes the lock without waiting. The error is errHeld if another process has it.
func (s scope) acquire() (lock, error) {
	sa, err := s.attributes()
	if err != nil {
		return lock{}, err
	}
	mutex, err := windows.CreateMutex(sa, false, utf16(s.mutex))
	switch {
	case errors.Is(err, windows.ERROR_ALREADY_EXISTS):
		_ = windows.CloseHandle(mutex) // it was only opened
		return lock{}, errHeld
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return lock{}, s.locked
	case err != nil:
		return lock{}, fmt.Errorf("take the lock %s: %w", s.mutex, err)
	}
	l, err := s.newListener(mutex)
	if err != nil {
		err = errors.Join(err, windows.CloseHandle(mutex))
	}
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		err = s.locked
	}
	return lock{l}, err
}

// utf16 returns the name of a mutex or a pipe, none of which has a NUL, as Windows takes it.
func utf16(name string) *uint16 {
	p, _ := windows.UTF16PtrFromString(name)
	return p
}

func (s scope) attributes() (*windows.SecurityAttributes, error) {
	descriptor, err := windows.SecurityDescriptorFromString(s.access)
	if err != nil {
		return nil, fmt.Errorf("restrict access to the lock: %w", err)
	}
	sa := &windows.SecurityAttributes{SecurityDescriptor: descriptor}
	sa.Length = uint32(unsafe.Sizeof(*sa))
	return sa, nil
}

func (scope) adopt(file *os.File) (lock, error) {
	return lock{}, errors.Join(errNoHandover, file.Close())
}

// held returns nil if a process has the lock.
func (s scope) held() error {
	mutex, err := windows.OpenMutex(windows.SYNCHRONIZE, false, utf16(s.mutex))
	switch {
	case err == nil:
		return windows.CloseHandle(mutex)
	case errors.Is(err, windows.ERROR_FILE_NOT_FOUND):
		return s.free
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return s.closed
	}
	return fmt.Errorf("find the lock %s: %w", s.mutex, err)
}

// pid returns the PID of the holder.
func (scope) pid(id Identity) int { return id.PID }

// busyPause is the time between two attempts to connect to a holder that is busy.
const busyPause = 10 * time.Millisecond

// dial connects to the holder of the lock. It waits while the holder is busy, or about to listen.
func (s scope) dial(ctx context.Context) (net.Conn, error) {
	for {
		h, err := s.open()
		switch {
		case err == nil:
			return s.conn(h), nil
		case errors.Is(err, s.free):
			if err := s.held(); err != nil {
				return nil, err
			}
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

// beside returns an empty path: there is no folder.
func (lock) beside(string) string { return "" }

func (l lock) listen(context.Context) (net.Listener, error) { return l.pipeListener, nil }
