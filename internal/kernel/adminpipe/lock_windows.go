package adminpipe

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// lockName is the name of a mutex of the machine. It exists while a process has it open.
const lockName = `Global\Sluice`

// access lets administrators and LocalSystem use an object, and nobody else.
const access = "D:P(A;;GA;;;BA)(A;;GA;;;SY)"

func attributes() (*windows.SecurityAttributes, error) {
	descriptor, err := windows.SecurityDescriptorFromString(access)
	if err != nil {
		return nil, fmt.Errorf("restrict access to administrators: %w", err)
	}
	sa := &windows.SecurityAttributes{SecurityDescriptor: descriptor}
	sa.Length = uint32(unsafe.Sizeof(*sa))
	return sa, nil
}

// lock takes the lock. It does not wait.
func lock() (windows.Handle, error) {
	sa, err := attributes()
	if err != nil {
		return 0, err
	}
	name, err := windows.UTF16PtrFromString(lockName)
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
		return 0, fmt.Errorf("take the lock of this machine: %w", err)
	}
	return mutex, nil
}

// Held returns nil if a process has the lock, ErrFree if none has, and ErrDenied if this process may not
// know.
func Held() error {
	name, err := windows.UTF16PtrFromString(lockName)
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
	return fmt.Errorf("find the lock of this machine: %w", err)
}
