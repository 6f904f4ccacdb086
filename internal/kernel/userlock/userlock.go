// Package userlock is a lock that belongs to a user of this machine, and connections to
// its holder. It is for systems without network namespaces, and for daemons without privileges.
// For others package netlock does the same.
//
// The lock is a file that the system locks, so that it is free when its holder has ended,
// in whatever way. Beside it the holder writes the address at which it listens, on
// 127.0.0.1, and a secret, in a file that only this user can read. Both sides of a connection prove
// that they have the secret (proof.go); a connection without proof is closed. It is TCP, as the
// credentials of the peer of a unix socket are different on each system.
package userlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// Errors of this package.
var (
	// ErrHeld means that another process holds the lock.
	ErrHeld = errors.New("lock is held")
	// ErrFree means that no process holds the lock.
	ErrFree = errors.New("lock is free")
	// ErrSilent means that the holder of the lock does not listen.
	ErrSilent = errors.New("the holder of the lock does not listen")
	// ErrNoFolder means that this user has no folder for the lock.
	ErrNoFolder = errors.New("find a folder for the lock")
)

// Options for Acquire, Dial and Holder.
type Options struct {
	Folder string // of the lock; "": "sluice" in the user's folder for caches
}

// The files in the folder.
const (
	lockFile   = "lock"
	holderFile = "holder"
)

// holder is the content of the holder file.
type holder struct {
	PID    int            `json:"pid"`
	At     netip.AddrPort `json:"at"`
	Secret string         `json:"secret"`
}

func (o Options) folder() (string, error) {
	if o.Folder != "" {
		return o.Folder, nil
	}
	caches, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoFolder, err)
	}
	return filepath.Join(caches, "sluice"), nil
}

// Lock is held until Close, or until the process ends.
type Lock struct {
	folder string
	file   *os.File
}

// Acquire takes the lock. It does not wait: the error is ErrHeld if another process
// holds it, or is checking it at this moment.
func Acquire(o Options) (*Lock, error) {
	folder, err := o.folder()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("create the folder of the lock: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(folder, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := lockAlone(file); err != nil {
		_ = file.Close() // nothing was written to it
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	if err := os.Remove(filepath.Join(folder, holderFile)); err != nil && !errors.Is(err, fs.ErrNotExist) { // the last holder's
		return nil, errors.Join(fmt.Errorf("take the lock: %w", err), file.Close())
	}
	return &Lock{folder, file}, nil
}

// Adopt returns a lock that is held by a file of File. It owns the file.
func Adopt(file *os.File, o Options) (*Lock, error) {
	folder, err := o.folder()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Lock{folder, file}, nil
}

// File returns a second file that holds the lock, which is released when both are closed.
func (l *Lock) File() (*os.File, error) { return duplicate(l.file) }

// Close releases the lock.
func (l *Lock) Close() error { return l.file.Close() }

// Listen returns a listener for connections of this user. It does nothing until Run.
func (l *Lock) Listen(ctx context.Context) (*Listener, error) {
	inner, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for commands: %w", err)
	}
	at, err := netip.ParseAddrPort(inner.Addr().String())
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	self := holder{PID: os.Getpid(), At: at, Secret: newSecret()}
	if err := self.write(l.folder); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for commands: %w", err), inner.Close())
	}
	return newListener(inner, self.Secret), nil
}

const (
	secretBytes = 16
	secretText  = 2 * secretBytes // in hexadecimal
)

func newSecret() string {
	b := make([]byte, secretBytes)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// write writes the holder file.
func (h holder) write(folder string) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(folder, holderFile) // which only this user can read
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return os.Rename(file.Name(), filepath.Join(folder, holderFile))
}

// Holder returns the PID of the holder of the lock; 0: it has not listened yet. The error
// is ErrFree if there is none.
func Holder(o Options) (pid int, err error) {
	h, err := find(o)
	if errors.Is(err, ErrSilent) {
		err = nil
	}
	return h.PID, err
}

// Dial connects to the holder of the lock and returns its PID. The error is ErrFree if
// there is none, and ErrSilent if it has not listened yet or ends.
func Dial(ctx context.Context, o Options) (conn net.Conn, pid int, err error) {
	h, err := find(o)
	if err != nil {
		return nil, 0, err
	}
	const attempts = 5 // a holder with many silent connections may close this one
	for range attempts {
		if conn, err = h.dial(ctx); err == nil {
			return conn, h.PID, nil
		}
		if !errors.Is(err, io.EOF) && !errors.Is(err, connectionReset) {
			break
		}
	}
	return nil, 0, errors.Join(ErrSilent, err)
}

// dial connects to the holder.
func (h holder) dial(ctx context.Context) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", h.At.String())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.SetDeadline(time.Now().Add(secretTimeout))
	if err == nil {
		err = proveCommand(conn, h.Secret)
	}
	if err == nil && stop() {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// find reads the holder file if the lock is held.
func find(o Options) (holder, error) {
	folder, err := o.folder()
	if err != nil {
		return holder{}, err
	}
	if err := held(filepath.Join(folder, lockFile)); err != nil {
		return holder{}, err
	}
	text, err := os.ReadFile(filepath.Join(folder, holderFile))
	if errors.Is(err, fs.ErrNotExist) {
		return holder{}, ErrSilent
	}
	if err != nil {
		return holder{}, fmt.Errorf("find the holder of the lock: %w", err)
	}
	var h holder
	if json.Unmarshal(text, &h) != nil { // it is being written
		return holder{}, ErrSilent
	}
	return h, nil
}

// held returns nil if a process holds the lock, and ErrFree if none does.
func held(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrFree
	}
	if err != nil {
		return fmt.Errorf("open the lock: %w", err)
	}
	defer func() { _ = file.Close() }() // releases it
	err = lockShared(file)
	switch {
	case err == nil:
		return ErrFree
	case errors.Is(err, ErrHeld):
		return nil
	}
	return fmt.Errorf("lock %s: %w", path, err)
}
