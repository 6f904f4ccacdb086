package bpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Options for Open.
type Options struct {
	Dir    string // on a bpffs, where maps and links of programs stay; nothing else uses it
	Cgroup string // folder of a cgroup: programs are for sockets of processes in it, and below
	NetNS  int    // file descriptor of the network namespace of the node; 0: the current one

	// ConnectedUDP says which UDP sockets are balanced when they connect.
	ConnectedUDP Where

	Node string // its name, for ByHash

	// Exempting means that Exempt has an effect.
	Exempting bool

	// Program is the binary that calls Client if IsClient says so. Try executes it in another cgroup; empty: it does not.
	Program string
}

// layout is the version of the meaning of the maps. It is part of their path: maps of another version are not adopted.
const layout = "1"

// Conn has the tables of the kernel. It is safe for concurrent use. Reading creates nothing.
type Conn struct {
	opt     Options
	version string
	cookie  uint64

	mu      sync.Mutex
	maps    map[string]*ebpf.Map // of the programs; nil: they are not opened yet
	entries map[string]int       // of the tables, since they were read
}

// Open returns the tables. It creates nothing.
func Open(o Options) (*Conn, error) {
	cookie, err := cookieOf(o.NetNS)
	if err != nil {
		return nil, err
	}
	return &Conn{opt: o, cookie: cookie, version: version(cookie, o), entries: map[string]int{}}, nil
}

// Version returns the value that the entry of the programs should have.
func (c *Conn) Version() string { return c.version }

// Close closes descriptors. What they stand for stays.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var failed []error
	for _, m := range c.maps {
		failed = append(failed, m.Close())
	}
	c.maps = nil
	return errors.Join(failed...)
}

func (c *Conn) mapsDir() string          { return filepath.Join(c.opt.Dir, "maps-"+layout) }
func (c *Conn) mapPath(n string) string  { return filepath.Join(c.mapsDir(), n) }
func (c *Conn) linksDir() string         { return filepath.Join(c.opt.Dir, "links") }
func (c *Conn) linkPath(n string) string { return filepath.Join(c.linksDir(), n) }

// Read returns all entries. Maps that are not there are empty.
func (c *Conn) Read(ctx context.Context) (State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := State{}
	for _, t := range tables() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m, done, err := c.lookAt(t)
		if err != nil {
			return nil, err
		}
		before := len(state)
		if m != nil {
			err = each(m, func(k, v []byte) { state[Key{t, string(k)}] = string(v) })
			done()
		}
		if err != nil {
			return nil, fmt.Errorf("read map %s: %w", t, err)
		}
		c.entries[t.String()] = len(state) - before
	}
	attached, err := c.attached()
	if err != nil {
		return nil, err
	}
	if attached != "" {
		state[Key{Table: Programs}] = attached
	}
	return state, nil
}

// lookAt returns a map, without creating it; nil: there is none that is usable.
func (c *Conn) lookAt(t Table) (m *ebpf.Map, done func(), err error) {
	if m := c.maps[t.String()]; m != nil {
		return m, func() {}, nil
	}
	m, err = ebpf.LoadPinnedMap(c.mapPath(t.String()), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open the map %s: %w", t, err)
	}
	done = func() { _ = m.Close() } // it was only read from
	if k, v := t.sizes(); int(m.KeySize()) != k || int(m.ValueSize()) != v {
		done()
		return nil, nil, nil
	}
	return m, done, nil
}

// each calls a function with the entries of a map. One that another process changes meanwhile may have some twice.
func each(m *ebpf.Map, do func(k, v []byte)) error {
	var k, v []byte
	entries := m.Iterate()
	for entries.Next(&k, &v) {
		do(k, v)
	}
	return entries.Err()
}

// Write carries out steps in order. The maps and programs are created when they are first written.
func (c *Conn) Write(ctx context.Context, steps []Step) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(); err != nil {
		return err
	}
	for i := range steps {
		if i%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := c.write(&steps[i]); err != nil {
			return fmt.Errorf("%s: %w", steps[i].Entry, err)
		}
	}
	return nil
}

func (c *Conn) write(s *Step) error {
	if s.Table == Programs {
		return c.attach()
	}
	if err := s.check(); err != nil {
		return err
	}
	name := s.Table.String()
	if s.Remove {
		err := c.maps[name].Delete([]byte(s.Data))
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return ErrNotFound
		}
		if err == nil {
			c.counted(name, -1)
		}
		return err
	}
	err := c.put(name, []byte(s.Data), []byte(s.Value))
	if !isFull(err) {
		return err
	}
	if err := c.grow(name); err != nil {
		return fmt.Errorf("make the map larger: %w", err)
	}
	return c.put(name, []byte(s.Data), []byte(s.Value))
}

// isFull reports whether a map has no room: the kernel says it differently for each kind.
func isFull(err error) bool { return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) }

// firstSize is the size of the maps that are filled by Write before they grow.
const firstSize = 1024

// open opens or creates the maps.
func (c *Conn) open() error {
	if c.maps != nil {
		return nil
	}
	if err := os.MkdirAll(c.mapsDir(), 0o700); err != nil {
		return fmt.Errorf("make the folder for maps: %w", err)
	}
	spec, err := loadSock()
	if err != nil {
		return err
	}
	all := map[string]*ebpf.Map{}
	for name, ms := range spec.Maps {
		if isConstants(name) {
			continue
		}
		m, err := c.openMap(ms)
		if err != nil {
			for _, m := range all {
				_ = m.Close() // the error matters
			}
			return fmt.Errorf("open map %s: %w", name, err)
		}
		all[name] = m
	}
	c.maps = all
	return nil
}

// isConstants reports whether a map has constants of the programs.
func isConstants(name string) bool { return strings.HasPrefix(name, ".") }

func (c *Conn) openMap(ms *ebpf.MapSpec) (*ebpf.Map, error) {
	path := c.mapPath(ms.Name)
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err == nil {
		if m.Type() == ms.Type && m.KeySize() == ms.KeySize && m.ValueSize() == ms.ValueSize && m.Flags() == ms.Flags {
			return m, nil
		}
		if err := errors.Join(m.Close(), os.Remove(path)); err != nil {
			return nil, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if ms = ms.Copy(); ms.MaxEntries == 1 {
		ms.MaxEntries = firstSize
	}
	if m, err = ebpf.NewMap(ms); err != nil {
		return nil, err
	}
	if err := m.Pin(path); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if isTable(ms.Name) {
		c.entries[ms.Name] = 0
	}
	return m, nil
}

// grow replaces a map by one of twice its size: it fills the new one, and then the programs use it.
func (c *Conn) grow(name string) error {
	spec, err := loadSock()
	if err != nil {
		return err
	}
	old := c.maps[name]
	ms := spec.Maps[name]
	ms.MaxEntries = 2 * old.MaxEntries()
	larger, err := ebpf.NewMap(ms)
	if err != nil {
		return err
	}
	var failed error
	err = each(old, func(k, v []byte) {
		if err := larger.Put(k, v); err != nil && failed == nil {
			failed = err
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return errors.Join(err, larger.Close())
	}
	c.maps[name] = larger
	if attached, err := c.attached(); err != nil || attached != "" {
		if err == nil {
			err = c.attach()
		}
		if err != nil {
			c.maps[name] = old
			return errors.Join(err, larger.Close())
		}
	}
	return errors.Join(c.pinOver(larger, name), old.Close())
}

// pinOver replaces a pinned map at once.
func (c *Conn) pinOver(m *ebpf.Map, name string) error {
	path := c.mapPath(name)
	if err := os.Remove(path + "-new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := m.Pin(path + "-new"); err != nil {
		return err
	}
	return os.Rename(path+"-new", path)
}

// Remove removes what a Conn with these options has made, also where none could be opened. A folder that is not on a
// bpffs has nothing of it.
func Remove(ctx context.Context, o Options) ([]string, error) {
	var stat unix.Statfs_t
	if o.Dir == "" || unix.Statfs(o.Dir, &stat) != nil || stat.Type != unix.BPF_FS_MAGIC {
		return nil, nil
	}
	return (&Conn{opt: o}).Remove(ctx)
}

// Remove detaches the programs and deletes all maps. Sockets get the answers to what they have sent before.
func (c *Conn) Remove(ctx context.Context) ([]string, error) {
	if err := c.Close(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	links, err := c.names("links")
	if err != nil {
		return nil, err
	}
	var removed []string
	if err := c.detach(ctx, links); err != nil {
		return nil, err
	}
	if n := len(links); n > 0 {
		removed = append(removed, fmt.Sprintf("%d programs of sockets", n))
	}
	dirs, err := c.names(".")
	if err != nil {
		return removed, err
	}
	n := 0
	for _, dir := range dirs {
		if dir != "links" && !strings.HasPrefix(dir, "maps-") {
			continue // of another program
		}
		names, err := c.names(dir)
		if err != nil {
			return removed, err
		}
		for _, name := range names {
			if err := errors.Join(ctx.Err(), os.Remove(filepath.Join(c.opt.Dir, dir, name))); err != nil {
				return removed, err
			}
			n++
		}
		if err := os.Remove(filepath.Join(c.opt.Dir, dir)); err != nil {
			return removed, err
		}
	}
	if n > 0 {
		removed = append(removed, fmt.Sprintf("%d maps", n))
	}
	err = os.Remove(c.opt.Dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) { // other programs have something there
		err = nil
	}
	return removed, err
}

// names lists a folder of pins; none if it is not there.
func (c *Conn) names(dir string) ([]string, error) {
	list, err := os.ReadDir(filepath.Join(c.opt.Dir, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list what is pinned: %w", err)
	}
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	slices.Sort(all)
	return all, nil
}
