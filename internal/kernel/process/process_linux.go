// Package process finds processes of this machine by their name.
package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Options say where to look and who is meant.
type Options struct {
	Root string // folder of the processes; "": /proc

	// NetNS is the file descriptor of the network namespace that the processes
	// are in; 0: that of this process.
	NetNS int
}

// Processes are those this process can see.
type Processes struct{ opts Options }

// New returns access to the processes.
func New(opts Options) *Processes {
	if opts.Root == "" {
		opts.Root = "/proc"
	}
	return &Processes{opts: opts}
}

// Named returns the numbers of the processes of this name in the network
// namespace, lowest first. The name is that of the program it was started as, or
// the one the kernel has for it. Those that run the same program as this process
// are left out, and those that cannot be read, as a process may end at any time
// or be of another user.
func (p *Processes) Named(ctx context.Context, name string) ([]int, error) {
	ns, err := os.Readlink(p.namespace())
	if err != nil {
		return nil, fmt.Errorf("read own network namespace: %w", err)
	}
	self, err := os.Stat(p.path("self", "exe"))
	if err != nil {
		return nil, fmt.Errorf("read own program: %w", err)
	}
	folder, err := os.Open(p.opts.Root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	entries, err := folder.Readdirnames(-1)
	_ = folder.Close()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []int
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		pid, err := strconv.Atoi(entry)
		if err != nil || !p.called(entry, name) || !p.within(entry, ns) || p.runs(entry, self) {
			continue
		}
		found = append(found, pid)
	}
	slices.Sort(found)
	return found, nil
}

// called says whether a process has this name. Most do not, and are told by one
// read.
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

// within says whether a process is in a network namespace, as the kernel prints it.
func (p *Processes) within(pid, ns string) bool {
	its, err := os.Readlink(p.path(pid, "ns", "net"))
	return err == nil && its == ns
}

// runs says whether a process runs this program. Paths do not tell: each has a
// file system of its own.
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
