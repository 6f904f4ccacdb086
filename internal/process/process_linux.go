package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Processes gives access to the processes that this one can see.
type Processes struct{ root string }

// New returns access to the processes.
func New() Processes { return Processes{"/proc"} }

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
func (p Processes) WithSocket(inode uint64) (int, error) {
	folder, err := os.Open(p.root)
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
func (p Processes) has(pid, file string) bool {
	files, _ := os.ReadDir(p.path(pid, "fd"))
	return slices.ContainsFunc(files, func(f os.DirEntry) bool {
		to, err := os.Readlink(p.path(pid, "fd", f.Name()))
		return err == nil && to == file
	})
}

func (p Processes) path(parts ...string) string {
	return filepath.Join(append([]string{p.root}, parts...)...)
}

// Describe returns the properties of a process, as far as they can be read.
func (p Processes) Describe(pid int) Process {
	entry := strconv.Itoa(pid)
	comm, _ := os.ReadFile(p.path(entry, "comm"))
	command, _ := os.ReadFile(p.path(entry, "cmdline"))
	first, _, _ := bytes.Cut(command, []byte{0})
	program, err := os.Readlink(p.path(entry, "exe"))
	if err != nil {
		program = string(first)
	}
	return Process{
		PID: pid, Program: program, Names: []string{filepath.Base(string(first)), strings.TrimSuffix(string(comm), "\n")},
		Admin: p.admin(entry), Self: p.self(entry),
	}
}

// self reports whether a process runs the program of this one. It compares files, as paths may
// belong to different file systems.
func (p Processes) self(pid string) bool {
	own, ownErr := os.Stat(p.path("self", "exe"))
	its, itsErr := os.Stat(p.path(pid, "exe"))
	return ownErr == nil && itsErr == nil && os.SameFile(own, its)
}

// admin reports whether a process has CAP_NET_ADMIN in the user namespace of this process, or can acquire it.
func (p Processes) admin(pid string) bool {
	if !p.same(pid, "ns/user", os.Readlink) || !p.same(pid, "uid_map", readText) {
		return false
	}
	status, err := os.ReadFile(p.path(pid, "status"))
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(status)) {
		value, found := strings.CutPrefix(line, "CapPrm:")
		if !found {
			continue
		}
		permitted, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		return err != nil || permitted&(1<<unix.CAP_NET_ADMIN) != 0
	}
	return true
}

// same reports whether a file in /proc has the same content for a process as for
// this one. It returns true if either file cannot be read.
func (p Processes) same(pid, file string, read func(path string) (string, error)) bool {
	own, ownErr := read(p.path("self", file))
	its, itsErr := read(p.path(pid, file))
	return ownErr != nil || itsErr != nil || own == its
}

func readText(path string) (string, error) {
	text, err := os.ReadFile(path)
	return string(text), err
}

// Capabilities returns the effective capabilities of this thread among those that a mode of Sluice may need, by name.
func Capabilities() ([]string, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil, fmt.Errorf("read own capabilities: %w", err)
	}
	var names []string
	for _, c := range []struct {
		name string
		bit  int
	}{
		{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN},
		{"CAP_NET_RAW", unix.CAP_NET_RAW},
		{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE},
		{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN},
		{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE},
		{"CAP_BPF", unix.CAP_BPF},
	} {
		if data[c.bit/32].Effective&(1<<(c.bit%32)) != 0 {
			names = append(names, c.name)
		}
	}
	return names, nil
}
