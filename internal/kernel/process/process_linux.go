package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options for New.
type Options struct {
	Root string // folder of the processes; "": /proc

	// NetNS is the file descriptor of the network namespace that the processes
	// are in; 0: that of this process.
	NetNS int
}

// Processes gives access to the processes that this one can see.
type Processes struct{ opts Options }

// New returns access to the processes.
func New(opts Options) *Processes {
	if opts.Root == "" {
		opts.Root = "/proc"
	}
	return &Processes{opts: opts}
}

// Process is a process in the network namespace.
type Process struct {
	PID     int
	Program string        // path of its executable, else the first argument
	Admin   bool          // it may have CAP_NET_ADMIN in the user namespace of this process
	Age     time.Duration // since it was started; 0 if that cannot be read
	Sockets []uint64      // inodes of its open sockets; nil if they cannot be read
}

// Named returns the processes with this name in the network namespace, sorted by PID. The
// name is that of the program in the command line, or the one the kernel has for the
// process; any process can take it. Named leaves out processes that run the same program as
// this one, and those that cannot be read, as a process may exit at any time.
func (p *Processes) Named(ctx context.Context, name string) ([]Process, error) {
	ns, err := os.Readlink(p.namespace())
	if err != nil {
		return nil, fmt.Errorf("read own network namespace: %w", err)
	}
	self, err := os.Stat(p.path("self", "exe"))
	if err != nil {
		return nil, fmt.Errorf("read own program: %w", err)
	}
	pids, err := p.list()
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		entry := strconv.Itoa(pid)
		if p.called(entry, name) && p.within(entry, ns) && !p.runs(entry, self) {
			found = append(found, p.Describe(pid))
		}
	}
	return found, nil
}

// list returns the PIDs of all processes, sorted.
func (p *Processes) list() ([]int, error) {
	folder, err := os.Open(p.opts.Root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	entries, err := folder.Readdirnames(-1)
	_ = folder.Close()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// called reports whether a process has this name. For most processes one read is enough to
// rule that out.
func (p *Processes) called(pid, name string) bool {
	comm, err := os.ReadFile(p.path(pid, "comm"))
	if err != nil {
		return false
	}
	if strings.TrimSuffix(string(comm), "\n") == name {
		return true
	}
	command, err := os.ReadFile(p.path(pid, "cmdline"))
	if err != nil {
		return false
	}
	first, _, _ := bytes.Cut(command, []byte{0})
	return filepath.Base(string(first)) == name
}

// within reports whether a process is in a network namespace, as the kernel prints
// it. The namespace of a process with more capabilities cannot be read; then the inodes
// of two files decide, which differ between network namespaces.
func (p *Processes) within(pid, ns string) bool {
	its, err := os.Readlink(p.path(pid, "ns", "net"))
	if errors.Is(err, fs.ErrPermission) && p.opts.NetNS == 0 {
		own, ownErr := os.Stat(p.path("self", "net", "dev"))
		its, itsErr := os.Stat(p.path(pid, "net", "dev"))
		return ownErr == nil && itsErr == nil && os.SameFile(own, its)
	}
	return err == nil && its == ns
}

// runs reports whether a process runs this program. It compares files, as paths may
// belong to different file systems.
func (p *Processes) runs(pid string, program os.FileInfo) bool {
	its, err := os.Stat(p.path(pid, "exe"))
	return err == nil && os.SameFile(its, program)
}

func (p *Processes) namespace() string {
	if p.opts.NetNS == 0 {
		return p.path("self", "ns", "net")
	}
	return fmt.Sprintf("/proc/self/fd/%d", p.opts.NetNS)
}

func (p *Processes) path(parts ...string) string {
	return filepath.Join(append([]string{p.opts.Root}, parts...)...)
}

// WithSocket returns the lowest PID of the processes that have a socket open, by its inode;
// 0 if this process can see none.
func (p *Processes) WithSocket(inode uint64) (int, error) {
	pids, err := p.list()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		if slices.Contains(p.sockets(strconv.Itoa(pid)), inode) {
			return pid, nil
		}
	}
	return 0, nil
}
