package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Try tests whether programs can balance sockets on this host. It attaches programs with maps of their own to a new
// cgroup below the one of the options, verifies that the kernel runs them for processes in a cgroup below that, and
// removes everything. It returns ErrOthers if the kernel runs programs of another project as well.
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
	if err := removeStale(o.Cgroup); err != nil {
		return err
	}
	t, err := newSelfTest(o)
	if err != nil {
		return err
	}
	defer t.close()
	if err := t.attach(); err != nil {
		return err
	}
	return t.verify()
}

// selfTest is a set of programs with maps of their own, attached to a cgroup that nothing else is in.
type selfTest struct {
	programs   *ebpf.Collection
	links      []link.Link
	top, below *group // programs are attached to top
}

// selfTestMapSize is the size of the hashes of a self-test. Maps of other types have their own.
const selfTestMapSize = 256

func newSelfTest(o Options) (*selfTest, error) {
	cookie, err := cookieOf(o.NetNS)
	if err != nil {
		return nil, err
	}
	spec, err := loadSock()
	if err != nil {
		return nil, err
	}
	for name, m := range spec.Maps {
		if m.Type != ebpf.Array && m.Type != ebpf.RingBuf && !isDataSection(name) {
			m.MaxEntries = selfTestMapSize
		}
	}
	err = errors.Join(spec.Variables[sockVarNodeNetns].Set(cookie), spec.Variables[sockVarConnectedUdp].Set(true))
	if err != nil {
		return nil, err
	}
	programs, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("load the programs: %w", err)
	}
	t := &selfTest{programs: programs}
	if t.top, err = newGroup(o.Cgroup); err == nil {
		t.below, err = t.top.newBelow()
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *selfTest) close() {
	for _, l := range t.links {
		_ = l.Close() // detaches the program
	}
	if t.below != nil {
		t.below.remove()
	}
	if t.top != nil {
		t.top.remove()
	}
	t.programs.Close()
}

// attach attaches the programs, and replaces them.
func (t *selfTest) attach() error {
	for name, point := range (Options{}).points() {
		p := t.programs.Programs[name]
		l, err := link.AttachCgroup(link.CgroupOptions{Path: t.top.path, Attach: point, Program: p})
		if err != nil {
			return fmt.Errorf("attach program %s: %w", name, err)
		}
		t.links = append(t.links, l)
		if err := l.Update(p); err != nil {
			return fmt.Errorf("replace program %s: %w", name, err)
		}
	}
	return nil
}

// verify verifies that the programs are effective in the cgroup below, and that they are the only ones.
func (t *selfTest) verify() error {
	for name, point := range (Options{}).points() {
		info, err := t.programs.Programs[name].Info()
		if err != nil {
			return fmt.Errorf("identify program %s: %w", name, err)
		}
		id, _ := info.ID()
		programs, err := programsOf(t.below.path, point)
		if err == nil {
			err = effective(t.below.path, programs, id)
		}
		if err != nil {
			return fmt.Errorf("program %s: %w", name, err)
		}
		if err := noOthers(programs, point); err != nil {
			return err
		}
	}
	return nil
}
