//go:build unix

package admin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// user is the scope of the user who runs this process. Its lock is a file beside the socket that the system locks
// (flock), so that it is free as soon as its holder has ended, even by kill -9.
func user() (scope, error) {
	caches, err := os.UserCacheDir()
	if err != nil {
		return scope{}, fmt.Errorf("find a folder for the lock of the daemon: %w", err)
	}
	s := socket{filepath.Join(caches, "sluice"), "control"}
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
