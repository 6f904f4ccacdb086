package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Options for New.
type Options struct {
	Root string // folder of the processes; "": /proc
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

// Process is a process, as far as it can be read.
type Process struct {
	PID     int
	Program string   // path of its executable, else the first argument
	Names   []string // in the command line, and in the kernel; any process can take a name
	Admin   bool     // it may have CAP_NET_ADMIN in the user namespace of this process
	Self    bool     // it runs the same program as this process
}

// WithSocket returns the lowest PID of the processes that have a socket open, by its inode;
// 0 if this process can see none.
func (p *Processes) WithSocket(inode uint64) (int, error) {
	folder, err := os.Open(p.opts.Root)
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	entries, err := folder.Readdirnames(-1)
	_ = folder.Close()
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	for _, pid := range pids {
		if p.has(strconv.Itoa(pid), fmt.Sprintf("socket:[%d]", inode)) {
			return pid, nil
		}
	}
	return 0, nil
}

// has reports whether a process has a file open. It may have ended, or may not be read.
func (p *Processes) has(pid, file string) bool {
	files, _ := os.ReadDir(p.path(pid, "fd"))
	return slices.ContainsFunc(files, func(f os.DirEntry) bool {
		to, err := os.Readlink(p.path(pid, "fd", f.Name()))
		return err == nil && to == file
	})
}

func (p *Processes) path(parts ...string) string {
	return filepath.Join(append([]string{p.opts.Root}, parts...)...)
}
