package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Exempting is a set of exempt processes, whose connections are left to the packet plane.
type Exempting uint32

// The elements of the set, with the values of sock.c.
const (
	ExemptCgroups Exempting = 1 // processes in the cgroups of Exempt and ExemptOnly, and below
	ExemptRoot    Exempting = 2 // processes in the root of all cgroups, but not below: threads of the kernel
)

// CgroupID returns the id of a cgroup by its folder: the inode number.
func CgroupID(dir string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return stat.Ino, nil
}

// Exempt exempts the processes in these cgroups, and in those below, by ids. If the maps do not exist yet, the cgroups are exempt once Write
// creates them. Exempt returns ErrFull if the map has no room.
func (c *Conn) Exempt(cgroups map[uint64]bool) error {
	return c.whenOpen(func() error { return c.exempt(cgroups) })
}

// ExemptOnly does the same, and ends the exemption of all other cgroups.
func (c *Conn) ExemptOnly(cgroups map[uint64]bool) error {
	return c.whenOpen(func() error { return errors.Join(c.unexempt(cgroups), c.exempt(cgroups)) })
}

// whenOpen calls a function now, or when the maps are opened.
func (c *Conn) whenOpen(write func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.maps == nil {
		c.exempts = write
		return nil
	}
	return write()
}

func (c *Conn) exempt(cgroups map[uint64]bool) error {
	for id := range cgroups {
		err := put(c.maps[sockMapExempt], native64(id), native32(1))
		if isFull(err) {
			err = ErrFull
		}
		if err != nil {
			return fmt.Errorf("exempt a cgroup: %w", err)
		}
	}
	return nil
}

// unexempt ends the exemption of all cgroups except these.
func (c *Conn) unexempt(except map[uint64]bool) error {
	err := removeIf(c.maps[sockMapExempt], func(k, _ []byte) bool { return !except[binary.NativeEndian.Uint64(k)] })
	if err != nil {
		return fmt.Errorf("end the exemption of cgroups: %w", err)
	}
	return nil
}
