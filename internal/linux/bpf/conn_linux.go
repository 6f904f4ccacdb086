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

	// ConnectedUDP means that UDP sockets are balanced when they connect: the caller destroys them when their backend is
	// gone.
	ConnectedUDP bool

	// Durations means that a further program measures how long connections take until they are established
	// (TryDurations).
	Durations bool

	// Exempting selects the processes whose connections are left to the packet plane.
	Exempting Exempting

	// FirstSize is the size of the maps that Write fills, before they grow. 0: the default.
	FirstSize int

	// Fault makes an operation fail in a test, with the error that it returns. Nil: none fails.
	Fault func(Operation) error
}

// Conn reads and writes the tables of the kernel. It is safe for concurrent use. Reading creates nothing.
type Conn struct {
	opt     Options
	spec    *ebpf.CollectionSpec // read-only
	mapsDir string               // the name of the folder of maps
	version string
	cookie  uint64 // of the network namespace of the node

	mu       sync.Mutex
	maps     map[string]*ebpf.Map // of the programs; nil: not opened yet
	entries  map[string]int       // number of entries of each table that was read
	exempted map[uint64]bool      // cgroups of the last Exempt; nil: it was not called yet
}

// Open returns the tables. It creates nothing.
func Open(o Options) (*Conn, error) {
	cookie, err := cookieOf(o.NetNS)
	if err != nil {
		return nil, err
	}
	spec, err := loadSock()
	if err != nil {
		return nil, err
	}
	c := &Conn{opt: o, spec: spec, mapsDir: mapsDirOf(spec), cookie: cookie, entries: map[string]int{}}
	c.version = c.versionOf()
	return c, nil
}

// Version returns the value that the entry of the programs should have.
func (c *Conn) Version() string { return c.version }

// NetNS returns the cookie of the network namespace of the node.
func (c *Conn) NetNS() uint64 { return c.cookie }

// Close closes the descriptors. Pinned maps and attached programs stay.
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

func (c *Conn) mapPath(n string) string { return filepath.Join(c.opt.Dir, c.mapsDir, n) }

// Read returns all entries. Maps that are not there are empty.
func (c *Conn) Read(ctx context.Context) (State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := State{}
	for _, t := range tables() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		before := len(state)
		err := c.useMap(t.String(), func(m *ebpf.Map) error {
			return each(m, func(k, v []byte) { state[Key{t, string(k)}] = string(v) })
		})
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

// each calls a function with the entries of a map. It may repeat entries if another process changes the map meanwhile.
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
	return c.changeTables(func() error { return c.writeAll(ctx, steps) })
}

func (c *Conn) writeAll(ctx context.Context, steps []Step) error {
	for i := range steps {
		if i%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := c.write(&steps[i]); err != nil {
			err = fmt.Errorf("%s: %w", steps[i].Entry, err)
			if errors.Is(err, unix.ENOMEM) {
				return &NoRoom{i, err}
			}
			return err
		}
	}
	return nil
}

func (c *Conn) write(s *Step) error {
	if s.Table == Programs {
		return c.attach()
	}
	name := s.Table.String()
	if s.Remove {
		err := c.maps[name].Delete([]byte(s.Data))
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return ErrNotFound
		}
		if err == nil {
			c.counted(s.Table, -1)
		}
		return err
	}
	err := c.put(s.Entry)
	if !isFull(err) {
		return err
	}
	if err := c.grow(name); err != nil {
		return fmt.Errorf("make the map larger: %w", err)
	}
	return c.put(s.Entry)
}

// Remove removes what a Conn with these options has created, even if Open would fail. It does nothing if the folder
// is not on a bpffs.
func Remove(ctx context.Context, o Options) ([]string, error) {
	var stat unix.Statfs_t
	if o.Dir == "" || unix.Statfs(o.Dir, &stat) != nil || stat.Type != unix.BPF_FS_MAGIC {
		return nil, nil
	}
	return (&Conn{opt: o}).Remove(ctx)
}

// Remove detaches the programs and deletes all maps. Sockets still receive the answers to datagrams that they sent
// before.
func (c *Conn) Remove(ctx context.Context) ([]string, error) {
	if err := errors.Join(c.Close(), verifyOwner(c.opt.Dir)); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	links, err := c.names(linksFolder)
	if err != nil {
		return nil, err
	}
	if err := c.detach(ctx, links); err != nil {
		return nil, err
	}
	var removed []string
	if n := len(slices.DeleteFunc(links, isProgramPin)); n > 0 {
		removed = append(removed, fmt.Sprintf("%d programs of sockets", n))
	}
	n, err := c.removePins(func(_, _ string) bool { return false })
	if err != nil {
		return removed, err
	}
	if n > 0 {
		removed = append(removed, fmt.Sprintf("%d maps", n))
	}
	err = os.Remove(c.opt.Dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) { // it holds files of other programs
		err = nil
	}
	return removed, err
}

// removePins removes the pins of links, programs and maps unless they stay, and folders without any. It returns how
// many.
func (c *Conn) removePins(stays func(dir, name string) bool) (n int, err error) {
	dirs, err := c.names(".")
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		if dir != linksFolder && !strings.HasPrefix(dir, mapsPrefix) {
			continue // of another program
		}
		names, err := c.names(dir)
		if err != nil {
			return n, err
		}
		left := len(names)
		for _, name := range names {
			if stays(dir, name) {
				continue
			}
			if err := os.Remove(filepath.Join(c.opt.Dir, dir, name)); err != nil {
				return n, err
			}
			n, left = n+1, left-1
		}
		if left > 0 {
			continue
		}
		if err := os.Remove(filepath.Join(c.opt.Dir, dir)); err != nil {
			return n, err
		}
	}
	return n, nil
}

// names lists the pins in a folder, sorted; none if the folder does not exist.
func (c *Conn) names(dir string) ([]string, error) {
	list, err := os.ReadDir(filepath.Join(c.opt.Dir, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the pins: %w", err)
	}
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	return all, nil
}
