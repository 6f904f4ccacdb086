package bpf

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// Operation is a step of Write that Options.Fault can make fail.
type Operation string

// The operations.
const (
	Grow   Operation = "grow"   // before a map is replaced by a larger one
	Attach Operation = "attach" // before a program is attached
	Pin    Operation = "pin"    // before a map or program is pinned
)

// injectFault returns the error with which an operation fails in a test.
func (c *Conn) injectFault(o Operation) error {
	if c.opt.Fault == nil {
		return nil
	}
	return c.opt.Fault(o)
}

// isFull reports whether a map has no room. The error of the kernel depends on the type of the map.
func isFull(err error) bool { return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) }

// freeOfCPU is how many free entries of an LRU map each processor has for itself, while others have to evict
// (LOCAL_FREE_TARGET in kernel/bpf/bpf_lru_list.c): with 512 processors 65,536 entries would be none.
const freeOfCPU = 128

// firstSize is the default of Options.FirstSize.
const firstSize = 1024

// mapsPrefix begins the names of folders with maps.
const mapsPrefix = "maps-"

// mapsDirOf returns the name of the folder for the maps of some programs. Versions with other maps, fields or sizes
// have other folders: their programs stay until those of this version are attached, with maps that are filled. What
// the earlier programs have written is lost with them.
func mapsDirOf(spec *ebpf.CollectionSpec) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		if ms := spec.Maps[name]; !isDataSection(name) {
			fmt.Fprintln(h, name, ms.Type, ms.Flags, ms.MaxEntries, layoutOf(ms.Key), layoutOf(ms.Value))
		}
	}
	return mapsPrefix + hex.EncodeToString(h.Sum(nil)[:6])
}

// layoutOf returns the fields of a key or value, with those of its structs.
func layoutOf(t btf.Type) string {
	if t == nil {
		return ""
	}
	size, _ := btf.Sizeof(t) // 0 where it has none
	list := []string{t.TypeName(), fmt.Sprint(size)}
	if s, is := btf.UnderlyingType(t).(*btf.Struct); is {
		for _, m := range s.Members {
			list = append(list, m.Name, fmt.Sprint(m.Offset), layoutOf(m.Type))
		}
	}
	return strings.Join(list, " ")
}

// isDataSection reports whether a map is a data section of the programs, such as .rodata. It is not pinned.
func isDataSection(name string) bool { return strings.HasPrefix(name, ".") }

// withMap is useMap for a caller that does not hold the lock.
func (c *Conn) withMap(name string, do func(*ebpf.Map) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.useMap(name, do)
}

// useMap calls a function with a map of the programs: the open one, or the pinned one. It does nothing if neither
// exists.
func (c *Conn) useMap(name string, do func(*ebpf.Map) error) error {
	if m := c.maps[name]; m != nil {
		return do(m)
	}
	m, err := c.pinned(name)
	if m == nil || err != nil {
		return err
	}
	defer func() { _ = m.Close() }() // the error of the function matters
	return do(m)
}

// pinned opens the pinned map. It returns nil if there is none.
func (c *Conn) pinned(name string) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(c.mapPath(name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", name, err)
	}
	return m, nil
}

// open opens or creates the maps.
func (c *Conn) open() error {
	if c.maps != nil {
		return nil
	}
	if err := c.makeDirs(); err != nil {
		return err
	}
	all := map[string]*ebpf.Map{}
	for name, ms := range c.spec.Maps {
		if isDataSection(name) {
			continue
		}
		m, err := c.openMap(ms)
		if err != nil {
			for _, m := range all {
				_ = m.Close() // the error of openMap matters
			}
			return fmt.Errorf("open map %s: %w", name, err)
		}
		all[name] = m
	}
	c.maps = all
	if c.exempted != nil {
		_ = c.exempt() // Exempt is called again, and then returns the error
	}
	return nil
}

// verifyOwner returns an error if other users can change a folder, as one of them may have created it: all users may
// create folders on a bpffs that is mounted without options. A folder that is missing is no error.
func verifyOwner(dir string) error {
	var stat unix.Stat_t
	err := unix.Lstat(dir, &stat)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && (stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0) {
		err = fmt.Errorf("another user may change it; remove it, or use another folder: %w", unix.EPERM)
	}
	if err != nil {
		return &fs.PathError{Op: "use", Path: dir, Err: err}
	}
	return nil
}

func (c *Conn) makeDirs() error {
	if err := os.MkdirAll(c.opt.Dir, 0o700); err != nil {
		return fmt.Errorf("make a folder for maps: %w", err)
	}
	if err := verifyOwner(c.opt.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(c.opt.Dir, c.mapsDir), 0o700); err != nil {
		return fmt.Errorf("make a folder for maps: %w", err)
	}
	return nil
}

// openMap opens a map, or creates and pins it.
func (c *Conn) openMap(ms *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := c.pinned(ms.Name)
	if m != nil || err != nil {
		return m, err
	}
	if err := c.unpinPrograms(); err != nil { // those that are attached do not use the new map
		return nil, err
	}
	switch ms = ms.Copy(); {
	case isTable(ms.Name):
		ms.MaxEntries = uint32(cmp.Or(c.opt.FirstSize, firstSize))
	case ms.Type == ebpf.LRUHash, ms.Type == ebpf.LRUCPUHash:
		ms.MaxEntries += freeOfCPU * uint32(ebpf.MustPossibleCPU())
	}
	if m, err = ebpf.NewMap(ms); err != nil {
		return nil, err
	}
	if err := pinOver(c, m, c.mapPath(ms.Name)); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if isTable(ms.Name) {
		c.entries[ms.Name] = 0
	}
	return m, nil
}

// grow replaces a map by one of twice its size: it copies the entries, and then replaces the programs. It does not
// replace programs that use other maps than those of c: the new programs would find maps that are not filled yet.
func (c *Conn) grow(name string) error {
	attached, err := c.attached()
	if err != nil {
		return err
	}
	larger, err := c.larger(name)
	if err != nil {
		return err
	}
	if err = c.unpinPrograms(); err == nil {
		err = pinOver(c, larger, c.mapPath(name))
	}
	if err != nil {
		return errors.Join(err, larger.Close())
	}
	err = c.maps[name].Close()
	c.maps[name] = larger
	if attached == c.version {
		err = errors.Join(err, c.attach())
	}
	return err
}

// larger returns a copy of a map with room for twice as many entries.
func (c *Conn) larger(name string) (*ebpf.Map, error) {
	if err := c.injectFault(Grow); err != nil {
		return nil, err
	}
	old, ms := c.maps[name], c.spec.Maps[name].Copy()
	ms.MaxEntries = 2 * old.MaxEntries()
	larger, err := ebpf.NewMap(ms)
	if err != nil {
		return nil, err
	}
	var failed error
	err = each(old, func(k, v []byte) {
		if err := put(larger, k, v); err != nil && failed == nil {
			failed = err
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, errors.Join(err, larger.Close())
	}
	return larger, nil
}

// isPinned reports whether a map is pinned.
func (c *Conn) isPinned(name string) bool {
	_, err := os.Lstat(c.mapPath(name))
	return !errors.Is(err, fs.ErrNotExist)
}

// pinMaps pins the maps whose pins another program has removed.
func (c *Conn) pinMaps() error {
	if err := c.makeDirs(); err != nil {
		return err
	}
	for name, m := range c.maps {
		if c.isPinned(name) {
			continue
		}
		if err := pinOver(c, m, c.mapPath(name)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	return nil
}

// pinnable is a map or a program.
type pinnable[T any] interface {
	Clone() (T, error)
	Pin(path string) error
	Close() error
}

// pinOver pins a map or program at a path, and replaces an existing pin atomically. It pins a clone, so that the
// original does not remember the temporary path.
func pinOver[T pinnable[T]](c *Conn, from T, path string) error {
	if err := c.injectFault(Pin); err != nil {
		return err
	}
	if err := os.Remove(path + "-new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	clone, err := from.Clone()
	if err != nil {
		return err
	}
	err = clone.Pin(path + "-new")
	if err = errors.Join(err, clone.Close()); err != nil {
		return err
	}
	return os.Rename(path+"-new", path)
}
