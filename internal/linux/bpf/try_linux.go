package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
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

// Try tests whether programs can balance sockets on this host: whether the kernel loads them, with maps of their own,
// attaches them to the cgroup, and runs them. It attaches each program for a moment, in which the program changes
// nothing, as its maps are empty. It returns ErrOthers if the kernel runs programs of another project.
func Try(o Options) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(o.Dir), &stat); err != nil || stat.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%w at %s", ErrNoBPFFS, filepath.Dir(o.Dir))
	}
	if err := unix.Access(filepath.Dir(o.Dir), unix.W_OK); err != nil { // a read-only mount
		return &fs.PathError{Op: "write", Path: filepath.Dir(o.Dir), Err: err}
	}
	if err := verifyOwner(o.Dir); err != nil {
		return err
	}
	if err := unix.Statfs(o.Cgroup, &stat); err != nil || stat.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("%w at %s", ErrNoCgroup, o.Cgroup)
	}
	if err := rlimit.RemoveMemlock(); err != nil { // only kernels before 5.11 need it
		return err
	}
	o.ConnectedUDP = true // otherwise the verifier skips the code for it
	c, programs, err := loadEmpty(o)
	if err != nil {
		return err
	}
	defer programs.Close()
	for _, point := range c.points() {
		if err := verifyAlone(o.Cgroup, point); err != nil {
			return err
		}
	}
	for name, point := range c.points() {
		if err := tryAttach(o.Cgroup, point, programs.Programs[name]); err != nil {
			return fmt.Errorf("program %s: %w", name, err)
		}
	}
	return nil
}

// TryDurations tests whether the kernel runs the program that measures how long connections take. Programs of other
// projects may be attached beside it, unless they do not allow others.
func TryDurations(o Options) error {
	o.Durations = true
	c, programs, err := loadEmpty(o)
	if err != nil {
		return err
	}
	defer programs.Close()
	return tryAttach(o.Cgroup, c.points()[sockops], programs.Programs[sockops])
}

// loadEmpty loads the programs with maps of their own.
func loadEmpty(o Options) (*Conn, *ebpf.Collection, error) {
	c, err := Open(o)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range c.spec.Maps {
		if m.Type != ebpf.Array {
			m.MaxEntries = 256 // they stay empty
		}
	}
	programs, err := c.load()
	return c, programs, err
}

// programsOf lists the programs that the kernel runs for the processes in a cgroup.
func programsOf(cgroup string, point ebpf.AttachType) ([]link.AttachedProgram, error) {
	fd, err := unix.Open(cgroup, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
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

// verifyAlone returns ErrOthers if a program of another project is among those that the kernel runs for the processes
// in a cgroup. It ignores those that run when a socket is closed, and those that this process may not open, without
// CAP_SYS_ADMIN.
func verifyAlone(cgroup string, point ebpf.AttachType) error {
	if point == ebpf.AttachCgroupInetSockRelease {
		return nil
	}
	programs, err := programsOf(cgroup, point)
	if err != nil {
		return err
	}
	for _, p := range programs {
		if name, err := nameOf(p.ID); err == nil && !isOfSluice(name) {
			return fmt.Errorf("%w: program %d (%s), attached as %s", ErrOthers, p.ID, name, point)
		}
	}
	return nil
}

// tryAttach attaches a program to a cgroup, replaces and detaches it.
func tryAttach(cgroup string, point ebpf.AttachType, p *ebpf.Program) error {
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: point, Program: p})
	if err != nil {
		return fmt.Errorf("attach it: %w", err)
	}
	return errors.Join(l.Update(p), verifyEffective(cgroup, point, p), l.Detach(), l.Close())
}

// verifyEffective returns an error unless the kernel runs a program for the processes in a cgroup.
func verifyEffective(cgroup string, point ebpf.AttachType, p *ebpf.Program) error {
	info, err := p.Info()
	if err != nil {
		return fmt.Errorf("identify it: %w", err)
	}
	id, _ := info.ID()
	programs, err := programsOf(cgroup, point)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(programs, func(a link.AttachedProgram) bool { return a.ID == id }) {
		return fmt.Errorf("it is not effective in %s", cgroup)
	}
	return nil
}
