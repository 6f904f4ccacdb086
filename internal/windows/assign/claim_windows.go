package assign

import (
	"errors"
	"fmt"

	"golang.org/x/sys/windows"
)

// claimName is the name of a mutex of the machine. It exists while a process has it open.
const claimName = `Global\Sluice-Addresses`

// administrators may open the mutex, and nobody else.
const administrators = "D:P(A;;GA;;;BA)(A;;GA;;;SY)"

// Claim makes this the process of the machine that adds and removes addresses, whoever runs it, until
// release or its end. The error is ErrClaimed if another one is.
func Claim() (release func() error, err error) {
	descriptor, err := windows.SecurityDescriptorFromString(administrators)
	if err != nil {
		return nil, fmt.Errorf("claim the addresses of this machine: %w", err)
	}
	name, err := windows.UTF16PtrFromString(claimName)
	if err != nil {
		return nil, err
	}
	mutex, err := windows.CreateMutex(&windows.SecurityAttributes{SecurityDescriptor: descriptor}, false, name)
	switch {
	case errors.Is(err, windows.ERROR_ALREADY_EXISTS):
		return nil, errors.Join(ErrClaimed, windows.CloseHandle(mutex))
	case err != nil:
		return nil, fmt.Errorf("claim the addresses of this machine: %w", err)
	}
	return func() error { return windows.CloseHandle(mutex) }, nil
}
