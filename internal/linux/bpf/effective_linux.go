package bpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The reasons why programs do not balance all sockets.
var (
	ErrNoCgroup = errors.New("cgroup v2 is not mounted")
	ErrNoBPFFS  = errors.New("no bpffs")

	// ErrOthers means that the kernel runs programs of another project for the same system calls of all processes: they
	// would see backends in place of Services, and may change or refuse them.
	ErrOthers = errors.New("another program runs for the sockets of all processes")
)

// programsOf lists the programs that the kernel runs for the processes in a cgroup.
func programsOf(group string, point ebpf.AttachType) ([]link.AttachedProgram, error) {
	fd, err := unix.Open(group, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // it was only read from
	found, err := link.QueryPrograms(link.QueryOptions{Target: fd, Attach: point, QueryFlags: unix.BPF_F_QUERY_EFFECTIVE})
	if err != nil {
		return nil, fmt.Errorf("list the programs of a cgroup: %w", err)
	}
	return found.Programs, nil
}

// effective returns an error unless a program is among those that the kernel runs for the processes in a cgroup.
func effective(group string, programs []link.AttachedProgram, id ebpf.ProgramID) error {
	if !slices.ContainsFunc(programs, func(p link.AttachedProgram) bool { return p.ID == id }) {
		return fmt.Errorf("it is not effective in %s", group)
	}
	return nil
}

// noOthers returns ErrOthers if a program of another project is among those that the kernel runs. It ignores those that
// run when a socket is closed, and those that this process may not open, without CAP_SYS_ADMIN.
func noOthers(programs []link.AttachedProgram, point ebpf.AttachType) error {
	if point == ebpf.AttachCgroupInetSockRelease {
		return nil
	}
	for _, p := range programs {
		if name, err := nameOf(p.ID); err == nil && !isOfSluice(name) {
			return fmt.Errorf("%w: program %d (%s), attached as %s", ErrOthers, p.ID, name, point)
		}
	}
	return nil
}

// VerifyRoot returns an error unless the cgroup is the root of all cgroups. A container may see only its own cgroups.
func VerifyRoot(cgroup string) error {
	var stat unix.Stat_t
	if err := unix.Stat(cgroup, &stat); err != nil {
		return err
	}
	if stat.Ino != 1 { // inode number of the root of all cgroups
		return fmt.Errorf("programs see a part of the processes only: %s is not the root of all cgroups", cgroup)
	}
	return nil
}

// Effective verifies that the programs are effective for processes in other cgroups: it lists the effective programs
// of a new cgroup.
func (c *Conn) Effective() error {
	group, err := newGroup(c.opt.Cgroup)
	if err != nil {
		return err
	}
	defer group.remove()
	names, err := c.names("links")
	if err != nil {
		return err
	}
	for program, at := range c.opt.points() {
		l, err := c.linkOf(names, program)
		if err != nil || l == nil {
			return fmt.Errorf("program %s is not attached: %w", program, errors.Join(err, ErrNotFound))
		}
		info, err := l.Info()
		if err = errors.Join(err, l.Close()); err != nil {
			return err
		}
		programs, err := programsOf(group.path, at)
		if err == nil {
			err = effective(group.path, programs, info.Program)
		}
		if err != nil {
			return fmt.Errorf("program %s: %w", program, err)
		}
	}
	return nil
}
