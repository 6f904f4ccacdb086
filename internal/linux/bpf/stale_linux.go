package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// DetachStale detaches the programs of earlier runs from a cgroup, all that other links than ours attach, wherever they
// are pinned: in another folder, or on a bpffs that this process does not see. It returns how many. It needs
// CAP_SYS_ADMIN.
func DetachStale(cgroup string, ours map[link.ID]bool) (n int, err error) {
	id, err := CgroupID(cgroup)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	err = eachLink(func(l link.Link) error {
		info, err := l.Info()
		if err != nil || ours[info.ID] {
			return nil // of another type, which has no Info, or of this run
		}
		if group := info.Cgroup(); group == nil || group.CgroupId != id {
			return nil
		}
		if name, err := nameOf(info.Program); err != nil || !isOfSluice(name) { // an error: it is gone
			return nil
		}
		if err := l.Detach(); err != nil {
			return fmt.Errorf("detach a program of an earlier run: %w", err)
		}
		n++
		return nil
	})
	return n, err
}

// eachLink calls do for all links of the kernel. It skips a link that another program is making: the kernel answers
// EAGAIN until it is made (bpf_link_by_id of kernel/bpf/syscall.c).
func eachLink(do func(link.Link) error) error {
	all := new(link.Iterator)
	for {
		for all.Next() {
			if err := do(all.Link); err != nil {
				all.Close()
				return err
			}
		}
		if err := all.Err(); !errors.Is(err, unix.EAGAIN) {
			return err
		}
		all = &link.Iterator{ID: all.ID + 1}
	}
}

// nameOf returns the name of a program.
func nameOf(id ebpf.ProgramID) (string, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", err
	}
	defer func() { _ = p.Close() }() // it was only read from
	info, err := p.Info()
	if err != nil {
		return "", err
	}
	return info.Name, nil
}

// isOfSluice reports whether a program has the name of one of Sluice.
func isOfSluice(name string) bool { return strings.HasPrefix(name, "sluice_") }

// detachOthers detaches programs of earlier runs with another folder: they would choose backends from maps that
// nothing updates.
func (c *Conn) detachOthers() error {
	ours := map[link.ID]bool{}
	for program := range c.points() {
		l, err := c.linkOf(program)
		if l == nil || err != nil {
			return err
		}
		info, err := l.Info()
		if err = errors.Join(err, l.Close()); err != nil {
			return err
		}
		ours[info.ID] = true
	}
	_, err := DetachStale(c.opt.Cgroup, ours)
	if errors.Is(err, os.ErrPermission) {
		return nil // without CAP_SYS_ADMIN
	}
	return err
}
