package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// The results of attached if the programs are not those of this version with the pinned maps.
const (
	incomplete = "incomplete" // some programs are not attached
	other      = "other"      // some programs have another version or other maps
)

// linkName returns the name of the pinned link of a program.
func (c *Conn) linkName(program string) string { return program + "-" + c.version }

// programPinPrefix begins the names of pinned programs. Without the pin, opening a program to list its maps would
// need CAP_SYS_ADMIN.
const programPinPrefix = "program-"

func programPin(program string) string { return programPinPrefix + program }

func isProgramPin(name string) bool { return strings.HasPrefix(name, programPinPrefix) }

// isCurrent reports whether a pin in the folder of links belongs to this version.
func (c *Conn) isCurrent(name string) bool {
	if program, is := strings.CutPrefix(name, programPinPrefix); is {
		_, is = c.opt.points()[program]
		return is
	}
	return strings.HasSuffix(name, "-"+c.version)
}

// attached returns the version of the attached programs, incomplete, or other; "" if none is attached.
func (c *Conn) attached() (string, error) {
	names, err := c.names("links")
	if err != nil || !slices.ContainsFunc(names, func(name string) bool { return !isProgramPin(name) }) {
		return "", err
	}
	ids, err := c.mapIDs()
	if err != nil {
		return "", err
	}
	state := c.version
	for program := range c.opt.points() {
		l, err := c.linkOf(names, program)
		if err != nil {
			return "", err
		}
		if l == nil {
			return incomplete, nil
		}
		same, err := c.isAttached(l, c.spec.Programs[program], ids)
		if err = errors.Join(err, l.Close()); err != nil { // the link stays pinned
			return "", err
		}
		if !same {
			state = other
		}
	}
	return state, nil
}

// mapIDs returns the ids of the maps that programs should use. It omits maps that are missing, or that are open but
// not pinned.
func (c *Conn) mapIDs() (map[string]ebpf.MapID, error) {
	ids := map[string]ebpf.MapID{}
	for name, ms := range c.spec.Maps {
		if isDataSection(name) {
			continue
		}
		id, err := c.pinnedID(ms)
		if err != nil {
			return nil, err
		}
		if m := c.maps[name]; m != nil && id != 0 {
			if open, err := mapID(m); err != nil || open != id {
				return ids, err
			}
		}
		if id != 0 {
			ids[name] = id
		}
	}
	return ids, nil
}

// isAttached reports whether a link leads to a program of this version that uses these maps.
func (c *Conn) isAttached(l link.Link, spec *ebpf.ProgramSpec, ids map[string]ebpf.MapID) (bool, error) {
	if !exists(c.linkPath(c.linkName(spec.Name))) {
		return false, nil
	}
	p, err := ebpf.LoadPinnedProgram(c.linkPath(programPin(spec.Name)), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open program %s: %w", spec.Name, err)
	}
	defer func() { _ = p.Close() }() // it was only read from
	info, err := p.Info()
	if err != nil {
		return false, fmt.Errorf("read the maps of program %s: %w", spec.Name, err)
	}
	at, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("read the program of a link: %w", err)
	}
	id, _ := info.ID()
	used, _ := info.MapIDs()
	for _, name := range mapsOf(spec) {
		if want, there := ids[name]; !there || !slices.Contains(used, want) {
			return false, nil
		}
	}
	return at.Program == id, nil
}

// mapsOf returns the names of the maps that a program uses.
func mapsOf(spec *ebpf.ProgramSpec) (names []string) {
	for _, ins := range spec.Instructions {
		if name := ins.Reference(); ins.IsLoadFromMap() && !isDataSection(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// linkOf opens the pinned link of a program to this cgroup, preferably that of this version. It returns nil if there
// is none.
func (c *Conn) linkOf(names []string, program string) (link.Link, error) {
	candidates := []string{c.linkName(program)}
	for _, name := range names {
		if strings.HasPrefix(name, program+"-") && name != candidates[0] {
			candidates = append(candidates, name)
		}
	}
	for _, name := range candidates {
		l, err := link.LoadPinnedLink(c.linkPath(name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open the link of program %s: %w", program, err)
		}
		ours, err := c.isToCgroup(l)
		if ours || err != nil {
			return l, err
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// closeLink closes a link, which may be nil.
func closeLink(l link.Link) error {
	if l == nil {
		return nil
	}
	return l.Close()
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
