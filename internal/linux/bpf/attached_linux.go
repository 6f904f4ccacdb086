package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// other is the result of attached if some programs are not attached, or have another version or other maps.
const other = "other"

// linksFolder is the name of the folder with the pins of links and programs.
const linksFolder = "links"

// linkPath returns the pin of the link of a program.
func (c *Conn) linkPath(program string) string { return filepath.Join(c.opt.Dir, linksFolder, program) }

// programPath returns the pin of a program of this version that uses the pinned maps.
func (c *Conn) programPath(program string) string { return c.linkPath(program + "-" + c.version) }

func isProgramPin(name string) bool { return strings.Contains(name, "-") }

// isCurrent reports whether a pin in the folder of links is one of this version.
func (c *Conn) isCurrent(name string) bool {
	program, version, isProgram := strings.Cut(name, "-")
	_, is := c.points()[program]
	return is && (!isProgram || version == c.version)
}

// attached returns the version of the attached programs, or other; "" if none is attached.
func (c *Conn) attached() (string, error) {
	names, err := c.names(linksFolder)
	if err != nil || !slices.ContainsFunc(names, func(name string) bool { return !isProgramPin(name) }) {
		return "", err
	}
	for name := range c.spec.Maps {
		if !isDataSection(name) && !c.isPinned(name) {
			return other, nil
		}
	}
	state := c.version
	for program := range c.points() {
		l, err := c.linkOf(program)
		if err != nil {
			return "", err
		}
		if l == nil {
			return other, nil
		}
		same, err := c.isAttached(l, program)
		if err = errors.Join(err, l.Close()); err != nil { // the link stays pinned
			return "", err
		}
		if !same {
			state = other
		}
	}
	return state, nil
}

// isAttached reports whether a link leads to the pinned program of this version.
func (c *Conn) isAttached(l link.Link, program string) (bool, error) {
	p, err := ebpf.LoadPinnedProgram(c.programPath(program), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open program %s: %w", program, err)
	}
	defer func() { _ = p.Close() }() // it was only read from
	info, err := p.Info()
	if err != nil {
		return false, fmt.Errorf("identify program %s: %w", program, err)
	}
	at, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("read the program of a link: %w", err)
	}
	id, _ := info.ID()
	return at.Program == id, nil
}

// unpinPrograms removes the pins of programs, which stay attached: attached then returns other.
func (c *Conn) unpinPrograms() error {
	names, err := c.names(linksFolder)
	if err != nil {
		return err
	}
	for _, name := range names {
		if isProgramPin(name) {
			err = errors.Join(err, os.Remove(c.linkPath(name)))
		}
	}
	return err
}

// linkOf opens the pinned link of a program to this cgroup. It returns nil if there is none.
func (c *Conn) linkOf(program string) (link.Link, error) {
	l, err := link.LoadPinnedLink(c.linkPath(program), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the link of program %s: %w", program, err)
	}
	if ours, err := c.isToCgroup(l); !ours || err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// isToCgroup reports whether a link attaches a program to the cgroup of the options.
func (c *Conn) isToCgroup(l link.Link) (bool, error) {
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("read the cgroup of a link: %w", err)
	}
	id, err := CgroupID(c.opt.Cgroup)
	if err != nil {
		return false, fmt.Errorf("find the cgroup: %w", err)
	}
	group := info.Cgroup()
	return group != nil && group.CgroupId == id, nil
}
