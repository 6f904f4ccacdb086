package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Describe returns the properties of a process, as far as they can be read.
func (p *Processes) Describe(pid int) Process {
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
func (p *Processes) self(pid string) bool {
	own, ownErr := os.Stat(p.path("self", "exe"))
	its, itsErr := os.Stat(p.path(pid, "exe"))
	return ownErr == nil && itsErr == nil && os.SameFile(own, its)
}

// admin reports whether a process has CAP_NET_ADMIN in the user namespace of this process, or can acquire it.
func (p *Processes) admin(pid string) bool {
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
func (p *Processes) same(pid, file string, read func(path string) (string, error)) bool {
	own, ownErr := read(p.path("self", file))
	its, itsErr := read(p.path(pid, file))
	return ownErr != nil || itsErr != nil || own == its
}

func readText(path string) (string, error) {
	text, err := os.ReadFile(path)
	return string(text), err
}
