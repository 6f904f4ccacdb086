package assign

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// journalKey has a value for each Mark: named by the address, with the interface. The key is volatile:
// Windows forgets it when it starts anew, as it forgets the addresses. Only administrators can write it.
const journalKey = `SOFTWARE\Sluice\Addresses`

// journal is the Journal in the registry.
type journal struct{}

// with opens the key for a function.
func (journal) with(use func(registry.Key) error) error {
	key, err := createVolatile(journalKey)
	if err != nil {
		return fmt.Errorf(`open HKLM\%s: %w`, journalKey, err)
	}
	return errors.Join(use(key), key.Close())
}

// createVolatile opens a key of the machine, or creates one that lasts until Windows starts anew. Package
// registry creates only keys that last.
func createVolatile(path string) (registry.Key, error) {
	const optionVolatile = 1
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, err
	}
	var key registry.Key
	status, _, _ := windows.NewLazySystemDLL("advapi32.dll").NewProc("RegCreateKeyExW").Call(
		uintptr(registry.LOCAL_MACHINE), uintptr(unsafe.Pointer(name)), 0, 0, optionVolatile,
		registry.QUERY_VALUE|registry.SET_VALUE, 0, uintptr(unsafe.Pointer(&key)), 0)
	if status != 0 {
		return 0, windows.Errno(status)
	}
	return key, nil
}

// Marks implements Journal. It leaves out what no run of this program wrote.
func (j journal) Marks() (list []Mark, err error) {
	err = j.with(func(key registry.Key) error {
		names, err := key.ReadValueNames(-1)
		for _, name := range names {
			addr, err := netip.ParseAddr(name)
			if err != nil {
				continue
			}
			if id, _, err := key.GetIntegerValue(name); err == nil {
				list = append(list, Mark{addr, id})
			}
		}
		return err
	})
	return list, err
}

// Write implements Journal.
func (j journal) Write(m Mark) error {
	return j.with(func(key registry.Key) error { return key.SetQWordValue(m.Addr.String(), m.Interface) })
}

// Strike implements Journal.
func (j journal) Strike(m Mark) error {
	return j.with(func(key registry.Key) error {
		if err := key.DeleteValue(m.Addr.String()); !errors.Is(err, registry.ErrNotExist) {
			return err
		}
		return nil
	})
}
