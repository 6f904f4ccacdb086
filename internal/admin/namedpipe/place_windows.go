package namedpipe

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Place is a lock and its pipe, for a machine or a user.
type Place struct {
	lock   string // the name of a mutex, which exists while a process has it open
	pipe   string
	access string // the users that may use both, and no others

	owner *windows.SID // of the pipe of this user; nil if other users cannot make a pipe of this name
}

// Machine returns the place of administrators and LocalSystem. Only administrators may make pipes with this prefix, so
// that no other user takes the name first.
func Machine() Place {
	return Place{
		lock: `Global\Sluice`, pipe: `\\.\pipe\ProtectedPrefix\Administrators\Sluice`,
		access: "D:P(A;;GA;;;BA)(A;;GA;;;SY)",
	}
}

// User returns the place of the user who runs this process.
func User() (Place, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return Place{}, fmt.Errorf("identify the user: %w", err)
	}
	sid := user.User.Sid
	return Place{
		lock: `Global\Sluice-` + sid.String(), pipe: `\\.\pipe\Sluice-` + sid.String(),
		access: fmt.Sprintf("O:%[1]vD:P(A;;GA;;;%[1]v)", sid), owner: sid,
	}, nil
}

func (p Place) attributes() (*windows.SecurityAttributes, error) {
	descriptor, err := windows.SecurityDescriptorFromString(p.access)
	if err != nil {
		return nil, fmt.Errorf("restrict access to the lock: %w", err)
	}
	sa := &windows.SecurityAttributes{SecurityDescriptor: descriptor}
	sa.Length = uint32(unsafe.Sizeof(*sa))
	return sa, nil
}

// acquire takes the lock. It does not wait.
func (p Place) acquire() (windows.Handle, error) {
	sa, err := p.attributes()
	if err != nil {
		return 0, err
	}
	name, err := windows.UTF16PtrFromString(p.lock)
	if err != nil {
		return 0, err
	}
	mutex, err := windows.CreateMutex(sa, false, name)
	switch {
	case errors.Is(err, windows.ERROR_ALREADY_EXISTS):
		return 0, errors.Join(ErrHeld, windows.CloseHandle(mutex))
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return 0, fmt.Errorf("%w: %w", ErrDenied, err)
	case err != nil:
		return 0, fmt.Errorf("take the lock %s: %w", p.lock, err)
	}
	return mutex, nil
}

// held returns nil if a process has the lock, ErrFree if none has, and ErrDenied if this process may not
// know.
func (p Place) held() error {
	name, err := windows.UTF16PtrFromString(p.lock)
	if err != nil {
		return err
	}
	mutex, err := windows.OpenMutex(windows.SYNCHRONIZE, false, name)
	switch {
	case err == nil:
		return windows.CloseHandle(mutex)
	case errors.Is(err, windows.ERROR_FILE_NOT_FOUND):
		return ErrFree
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return fmt.Errorf("find the lock %s: %w", p.lock, err)
}

// Holder returns the PID of the process that holds the lock; 0 if it is not known. The error is ErrFree if no process
// holds it, and ErrDenied if this process may not query it.
func (p Place) Holder() (pid int, err error) {
	if err := p.held(); err != nil {
		return 0, err
	}
	h, err := p.open()
	if err != nil {
		return 0, nil // it is about to listen, or busy
	}
	defer func() { _ = windows.CloseHandle(h) }() // nothing was written
	var server uint32
	_ = windows.GetNamedPipeServerProcessId(h, &server) // it is only shown
	return int(server), nil
}
