package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// The reasons why programs cannot be used.
var (
	ErrNoCgroup = errors.New("cgroup v2 is not mounted")
	ErrNoBPFFS  = errors.New("no bpffs")
	ErrPartial  = errors.New("programs see a part of the processes only")
)

// CgroupRoot returns the folder where cgroup v2 is mounted, wherever that is.
func CgroupRoot() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read from
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) > 4 && strings.Contains(lines.Text(), " - cgroup2 ") {
			return unescape(words[4]), nil
		}
	}
	return "", errors.Join(ErrNoCgroup, lines.Err())
}

// unescape undoes how the kernel writes paths with spaces.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// Try finds out whether this kernel and this process can do what Conn does: it attaches the programs to a new cgroup
// below the one of the options, asks whether they are effective for processes below that, and removes everything.
func Try(o Options) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(o.Dir), &stat); err != nil || stat.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%w at %s", ErrNoBPFFS, filepath.Dir(o.Dir))
	}
	if err := unix.Statfs(o.Cgroup, &stat); err != nil || stat.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("%w at %s", ErrNoCgroup, o.Cgroup)
	}
	if err := rlimit.RemoveMemlock(); err != nil { // only kernels before 5.11 need it
		return err
	}
	c, err := Open(o)
	if err != nil {
		return err
	}
	spec, err := loadSock()
	if err != nil {
		return err
	}
	programs, err := ebpf.NewCollection(spec)
	if err != nil {
		return fmt.Errorf("load the programs: %w", err)
	}
	defer programs.Close()
	if err := tryAttach(o.Cgroup, programs.Programs); err != nil {
		return err
	}
	return c.Close()
}

// tryAttach attaches programs to a new cgroup, replaces them, and verifies that they are effective in a cgroup below.
func tryAttach(at string, programs map[string]*ebpf.Program) error {
	group, err := os.MkdirTemp(at, "sluice-probe-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(group) }() // nothing is in it
	below := filepath.Join(group, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.Remove(below) }() // nothing is in it
	for name, point := range points() {
		p := programs[name]
		l, err := link.AttachCgroup(link.CgroupOptions{Path: group, Attach: point, Program: p})
		if err != nil {
			return fmt.Errorf("attach program %s: %w", name, err)
		}
		err = l.Update(p)
		info, infoErr := p.Info()
		if err = errors.Join(err, infoErr); err == nil {
			id, _ := info.ID()
			err = effective(below, point, id)
		}
		if err = errors.Join(err, l.Close()); err != nil {
			return fmt.Errorf("replace program %s: %w", name, err)
		}
	}
	return nil
}

// effective returns an error unless a program runs for the processes in a cgroup.
func effective(group string, point ebpf.AttachType, id ebpf.ProgramID) error {
	fd, err := unix.Open(group, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // it was only read from
	found, err := link.QueryPrograms(link.QueryOptions{Target: fd, Attach: point, QueryFlags: unix.BPF_F_QUERY_EFFECTIVE})
	if err != nil {
		return fmt.Errorf("ask for the programs of a cgroup: %w", err)
	}
	if !contains(found, id) {
		return fmt.Errorf("it is not effective in %s", group)
	}
	return nil
}

// Whole returns ErrPartial if there are processes outside of the cgroup, as in a container that sees its own cgroups only.
func Whole(cgroup string) error {
	var stat unix.Stat_t
	if err := unix.Stat(cgroup, &stat); err != nil {
		return err
	}
	if stat.Ino != 1 { // the root of all
		return fmt.Errorf("%w: %s is not the root of all cgroups", ErrPartial, cgroup)
	}
	return nil
}

// Effective verifies that the programs are effective for processes in other cgroups: it asks for those of a new cgroup.
func (c *Conn) Effective() error {
	group, err := os.MkdirTemp(c.opt.Cgroup, "sluice-probe-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(group) }() // nothing is in it
	names, err := c.names("links")
	if err != nil {
		return err
	}
	for program, at := range points() {
		l, err := c.linkOf(names, program)
		if err != nil || l == nil {
			return fmt.Errorf("program %s is not attached: %w", program, errors.Join(err, ErrNotFound))
		}
		info, err := l.Info()
		if err = errors.Join(err, l.Close()); err != nil {
			return err
		}
		if err := effective(group, at, info.Program); err != nil {
			return fmt.Errorf("program %s: %w", program, err)
		}
	}
	return nil
}

func contains(list *link.QueryResult, id ebpf.ProgramID) bool {
	for _, p := range list.Programs {
		if p.ID == id {
			return true
		}
	}
	return false
}
