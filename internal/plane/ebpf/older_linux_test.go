package ebpf

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/sluice-proxy/sluice/internal/route"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Environment variables with the folder on a bpffs and the cgroup of a process in a role of refusals.
const (
	dirVar    = "SLUICE_TEST_BPF_DIR"
	cgroupVar = "SLUICE_TEST_CGROUP"
)

// refusal is a system call that a kernel refuses, by one of its arguments.
type refusal struct {
	number, argument, value int
	err                     unix.Errno
}

// refusals are what kernels lack for the programs, by the roles of processes that a filter refuses it.
func refusals() map[string]refusal {
	return map[string]refusal{
		"Linux before 5.14":         {unix.SYS_GETSOCKOPT, 2, unix.SO_NETNS_COOKIE, unix.ENOPROTOOPT},
		"without CONFIG_CGROUP_BPF": {unix.SYS_BPF, 0, unix.BPF_PROG_LOAD, unix.EINVAL},
	}
}

// apply makes the kernel refuse the call to this process, by seccomp.
func (r refusal) apply() error {
	load := func(offset int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(offset)}
	}
	unless := func(value int, jump uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(value), Jf: jump}
	}
	filter := []unix.SockFilter{ // struct seccomp_data has the number first, and the arguments from byte 16
		load(0), unless(r.number, 3), load(16 + 8*r.argument), unless(r.value, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(r.err)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, err := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if err != 0 {
		return err
	}
	return nil
}

// openRefused opens the plane in this process, and prints what it is and its log, in one line.
func openRefused(r refusal) error {
	if err := r.apply(); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	var log bytes.Buffer
	opened, err := Kind(nftables.Kind()).Open(context.Background(), plane.Setup{
		Config: &config.Config{
			MasqueradeMark: 0x4000, EBPF: config.EBPF{Dir: os.Getenv(dirVar), Cgroup: os.Getenv(cgroupVar)},
		},
		Families: route.Families(), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		return err
	}
	fmt.Printf("%T %s\n", opened.Plane, strings.ReplaceAll(log.String(), "\n", " "))
	return opened.Close()
}

// On a kernel that is too old, or that has no programs of cgroups, the packet plane serves alone, and the log says
// what is needed.
func TestOtherKernelsAreServedByPackets(t *testing.T) {
	kerneltest.NeedPrograms(t)
	t.Setenv(dirVar, filepath.Join(lab.BPFFS(t), "sluice"))
	t.Setenv(cgroupVar, lab.Cgroup(t))
	for role, r := range refusals() {
		t.Run(role, func(t *testing.T) {
			_, line := kerneltest.Child(t, kerneltest.Namespace(t), role, nil)
			for _, want := range []string{
				fmt.Sprintf("%T ", &nftables.Plane{}), "Sockets are not balanced: all connections are translated packet by packet",
				"use Linux 5.15 or newer with ", "CONFIG_CGROUP_BPF", r.err.Error(),
			} {
				if !strings.Contains(line, want) {
					t.Errorf("it says %q, want %q", line, want)
				}
			}
		})
	}
}
