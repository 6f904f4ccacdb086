package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// DetachStrays detaches the programs of earlier runs from a cgroup, wherever they are pinned: in another folder, or on a bpffs that this
// process does not see. It returns how many. It needs CAP_SYS_ADMIN.
func DetachStrays(cgroup string) (int, error) { return detachStrays(cgroup, nil) }

// detachStrays detaches the programs that other links than ours attach to a cgroup. Programs that learn addresses end with their process.
func detachStrays(cgroup string, ours map[link.ID]bool) (n int, err error) {
	id, err := CgroupID(cgroup)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	all := new(link.Iterator)
	for all.Next() {
		info, err := all.Link.Info()
		if err != nil || ours[info.ID] {
			continue // of another type, which has no Info, or not a stray
		}
		if group := info.Cgroup(); group == nil || group.CgroupId != id || !isOfSluice(info.Program) {
			continue
		}
		if err := all.Link.Detach(); err != nil {
			return n, fmt.Errorf("detach a program of an earlier run: %w", err)
		}
		n++
	}
	return n, all.Err()
}

// isOfSluice reports whether a program has the name of one that stays when its process ends.
func isOfSluice(id ebpf.ProgramID) bool {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return false // it is gone
	}
	defer func() { _ = p.Close() }() // it was only read from
	info, err := p.Info()
	return err == nil && strings.HasPrefix(info.Name, "sluice_")
}

// detachOthers detaches programs of earlier runs with another folder: they would choose backends from maps that nothing updates.
func (c *Conn) detachOthers() error {
	names, err := c.names("links")
	if err != nil {
		return err
	}
	ours := map[link.ID]bool{}
	for program := range c.opt.points() {
		l, err := c.linkOf(names, program)
		if l == nil || err != nil {
			return err
		}
		info, err := l.Info()
		if err = errors.Join(err, l.Close()); err != nil {
			return err
		}
		ours[info.ID] = true
	}
	if _, err = detachStrays(c.opt.Cgroup, ours); errors.Is(err, os.ErrPermission) {
		return nil // without CAP_SYS_ADMIN
	}
	return err
}
