package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// selfTestOptions are those of a node with a cgroup and a bpffs of its own.
func selfTestOptions(t *testing.T) Options {
	t.Helper()
	kerneltest.NeedPrograms(t)
	return Options{Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t), NetNS: kerneltest.Namespace(t)}
}

// Try leaves neither a pin nor a program.
func TestTry(t *testing.T) {
	o := selfTestOptions(t)
	began := time.Now()
	if err := Try(o); err != nil {
		t.Error(err)
	}
	t.Logf("took %s", time.Since(began))
	if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", o.Dir, err)
	}
	n, err := DetachStale(o.Cgroup, nil)
	if err != nil || n > 0 {
		t.Errorf("%d programs are attached, %v", n, err)
	}
}

// otherProgram lets all system calls pass.
type otherProgram struct {
	name  string
	typ   ebpf.ProgramType
	at    ebpf.AttachType
	flags uint32
}

// attach attaches the program to a cgroup until the test ends.
func (o otherProgram) attach(t *testing.T, cgroup string) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: o.name, Type: o.typ, AttachType: o.at, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	attach := link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: o.at, Flags: o.flags}
	if err := link.RawAttachProgram(attach); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		detach := link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: o.at}
		if err := link.RawDetachProgram(detach); err != nil {
			t.Error(err)
		}
		_ = errors.Join(p.Close(), dir.Close()) // nothing was written
	})
}

// Programs of other projects may change or refuse what the programs choose, unless they run when sockets are closed
// only.
func TestTryNoticesOtherPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		program otherProgram
		want    error
	}{
		"connect": {
			otherProgram{"mesh", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, unix.BPF_F_ALLOW_MULTI}, ErrOthers,
		},
		"send": {
			otherProgram{"mesh", ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP6Sendmsg, unix.BPF_F_ALLOW_MULTI}, ErrOthers,
		},
		"allows no others": {otherProgram{"mesh", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, 0}, ErrOthers},
		"can be replaced": {
			otherProgram{"mesh", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, unix.BPF_F_ALLOW_OVERRIDE}, ErrOthers,
		},
		"release": {
			otherProgram{"mesh", ebpf.CGroupSock, ebpf.AttachCgroupInetSockRelease, unix.BPF_F_ALLOW_MULTI}, nil,
		},
		"an earlier run": {
			otherProgram{"sluice_connect4", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, unix.BPF_F_ALLOW_MULTI}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := selfTestOptions(t)
			c.program.attach(t, o.Cgroup)
			err := Try(o)
			if !errors.Is(err, c.want) {
				t.Errorf("it returns %v, want %v", err, c.want)
			} else if errors.Is(err, ErrOthers) && !strings.Contains(err.Error(), c.program.name) {
				t.Errorf("it returns %q, which does not name program %s", err, c.program.name)
			}
		})
	}
}

// Try detects programs that are attached, but not effective in the cgroup.
func TestTryNoticesIneffectivePrograms(t *testing.T) {
	o := selfTestOptions(t)
	c, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	programs, err := c.load()
	if err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	for name, point := range c.points() {
		p := programs.Programs[name]
		if err := verifyEffective(o.Cgroup, point, p); err == nil {
			t.Errorf("%s: no error for a program that is not attached", name)
		}
		l, err := link.AttachCgroup(link.CgroupOptions{Path: filepath.Dir(o.Cgroup), Attach: point, Program: p})
		if err != nil {
			t.Fatal(err)
		}
		err = verifyEffective(o.Cgroup, point, p)
		if err = errors.Join(err, l.Detach(), l.Close()); err != nil {
			t.Errorf("%s, attached to the cgroup above: %v", name, err)
		}
	}
}
