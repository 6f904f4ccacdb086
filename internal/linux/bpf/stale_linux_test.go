package bpf

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Programs of an earlier run that had another folder for pins, or a bpffs that is gone, do not choose backends any
// more.
func TestProgramsOfAnotherFolder(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	serve(t, n.opt.NetNS, "127.0.0.2:8080")
	n.write(service(vip, 6, OfNode, "127.0.0.1:8080")...)
	n.opt.Dir = filepath.Join(lab.BPFFS(t), "sluice")
	n.conn = n.open()
	n.write(service(vip, 6, OfNode, "127.0.0.2:8080")...)
	n.run(func() error {
		answered, _, err := ask(vip)
		if err == nil && answered != "127.0.0.2:8080" {
			err = fmt.Errorf("%s answers, a backend of the earlier run", answered)
		}
		return err
	})
}

// Links that another program makes meanwhile are no error: the kernel lists them before they have a file descriptor.
func TestLinksInTheMaking(t *testing.T) {
	kerneltest.NeedPrograms(t)
	cgroup := lab.Cgroup(t)
	ended := make(chan error)
	stop := make(chan struct{})
	const makers = 4
	for range makers {
		go func() { ended <- attachAndDetach(cgroup, stop) }()
	}
	for range 500 {
		if _, err := DetachStale(cgroup, nil); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	for range makers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// attachAndDetach attaches a program of another name to a cgroup, again and again.
func attachAndDetach(cgroup string, stop <-chan struct{}) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "other", Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }() // its links are closed
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupInet4Connect, Program: p})
		if err != nil {
			return err
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
}
