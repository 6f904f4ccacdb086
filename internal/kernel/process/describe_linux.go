package process

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Describe returns the properties of a process, as far as they can be read.
func (p *Processes) Describe(pid int) Process {
	entry := strconv.Itoa(pid)
	return Process{
		PID: pid, Program: p.program(entry), Admin: p.admin(entry), Age: p.age(entry), Sockets: p.sockets(entry),
	}
}

// program returns the path of the executable, else the first argument.
func (p *Processes) program(pid string) string {
	if path, err := os.Readlink(p.path(pid, "exe")); err == nil {
		return path
	}
	command, _ := os.ReadFile(p.path(pid, "cmdline"))
	first, _, _ := bytes.Cut(command, []byte{0})
	return string(first)
}

// admin reports whether a process has CAP_NET_ADMIN in the user namespace of this process,
// or can acquire it.
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

// age returns how long ago a process was started (proc_pid_stat(5)).
func (p *Processes) age(pid string) time.Duration {
	const (
		startTime = 22 - 3 // the 22nd field; the list below begins with the third
		tick      = time.Second / 100
	)
	stat, _ := os.ReadFile(p.path(pid, "stat"))
	uptime, _ := os.ReadFile(p.path("uptime"))
	_, rest, _ := strings.Cut(string(stat[max(0, bytes.LastIndexByte(stat, ')')):]), ") ") // the name may contain both
	fields, up := strings.Fields(rest), strings.Fields(string(uptime))
	if len(fields) <= startTime || len(up) == 0 {
		return 0
	}
	started, err := strconv.ParseInt(fields[startTime], 10, 64)
	if err != nil {
		return 0
	}
	now, err := strconv.ParseFloat(up[0], 64)
	if err != nil {
		return 0
	}
	return max(0, time.Duration(now*float64(time.Second))-time.Duration(started)*tick)
}

// sockets returns the inodes of the sockets that a process has open.
func (p *Processes) sockets(pid string) []uint64 {
	files, err := os.ReadDir(p.path(pid, "fd"))
	if err != nil {
		return nil // it has ended, or may not be read
	}
	inodes := []uint64{} // not nil: the list was read
	for _, f := range files {
		to, err := os.Readlink(p.path(pid, "fd", f.Name()))
		number, isSocket := strings.CutPrefix(to, "socket:[")
		if err != nil || !isSocket {
			continue
		}
		if inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64); err == nil {
			inodes = append(inodes, inode)
		}
	}
	return inodes
}
