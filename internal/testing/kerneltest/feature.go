package kerneltest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// CompleteVar is the environment variable that test/uml sets to any value. Its kernel has every
// feature that tests need.
const CompleteVar = "SLUICE_TEST_KERNEL_COMPLETE"

// Lacks skips the test because the machine's own kernel lacks a feature. On the kernel of
// test/uml it fails the test, so that each test runs on one of the two kernels.
func Lacks(t testing.TB, feature string) {
	t.Helper()
	failIfComplete(t, feature)
	t.Skipf("this kernel has no %s; test/uml runs this test on a kernel that has it", feature)
}

// failIfComplete fails the test on the kernel of test/uml because that lacks a feature.
func failIfComplete(t testing.TB, feature string) {
	t.Helper()
	if os.Getenv(CompleteVar) != "" {
		t.Fatalf("the kernel of test/uml has no %s: add it to hack/test-kernel.config", feature)
	}
}

// ipvs is the name of IPVS among the families of generic netlink.
const ipvs = "IPVS"

// HasIPVS reports whether the kernel has IPVS or can load it.
func HasIPVS() (bool, error) {
	_, err := netlink.GenlFamilyGet(ipvs)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find IPVS: %w", err)
	}
	return true, nil
}

// NeedIPVS calls Lacks if the kernel has no IPVS and cannot load it.
func NeedIPVS(t testing.TB) {
	t.Helper()
	if has, err := HasIPVS(); err != nil {
		t.Fatal(err)
	} else if !has {
		Lacks(t, ipvs)
	}
}

// flush is IPVS_CMD_FLUSH of linux/ip_vs.h, with the version of its messages.
const flush, flushVersion = 17, 1

// FlushIPVS deletes all virtual servers in one request, like ipvsadm -C.
func FlushIPVS(t testing.TB, netns int) {
	t.Helper()
	Do(t, netns, func() error {
		family, err := netlink.GenlFamilyGet(ipvs)
		if err != nil {
			return err
		}
		request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
		request.AddData(&nl.Genlmsg{Command: flush, Version: flushVersion})
		_, err = request.Execute(unix.NETLINK_GENERIC, 0)
		return err
	})
}

// NeedPrograms skips the test if the kernel has no programs (eBPF) of cgroups, or if this process may not load them:
// no user namespace may, whatever the privileges in it. The quick tests (-short) need no root, and leave these tests
// out. In CI, which is root of the machine (CI=true), only the kernel is a reason to skip; on the kernel of test/uml
// there is none.
func NeedPrograms(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("only root of the machine may load programs, and the quick tests need no root")
	}
	loaded := features.HaveProgramType(ebpf.CGroupSockAddr)
	missing := programsMissing(readFile(t, "/proc/filesystems"), loaded)
	forbidden := programsForbidden(readFile(t, "/proc/self/uid_map"), os.Geteuid()) || errors.Is(loaded, os.ErrPermission)
	switch {
	case missing != "":
		failIfComplete(t, missing)
		t.Skipf("this kernel has no %s, and so no programs of cgroups", missing)
	case forbidden && os.Getenv("CI") == "true":
		t.Fatal("only root of the machine may load programs, and CI has to run this test")
	case forbidden:
		t.Skip("only root of the machine may load programs")
	case loaded != nil:
		t.Fatalf("load a program of cgroups: %v", loaded)
	}
}

// NeedUsers skips a quick test (-short) if this process cannot become another user: the user namespace of Main has
// only one.
func NeedUsers(t testing.TB) {
	t.Helper()
	if testing.Short() && programsForbidden(readFile(t, "/proc/self/uid_map"), os.Geteuid()) {
		t.Skip("only root of the machine may become another user, and the quick tests need no root")
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// programsMissing names the first feature for programs of cgroups that a kernel lacks; "" if it has all. text is
// /proc/filesystems, and loaded the result of loading such a program.
func programsMissing(text string, loaded error) string {
	for _, fs := range []string{"bpf", "cgroup2"} {
		if !slices.Contains(strings.Fields(text), fs) {
			return "file system " + fs
		}
	}
	if errors.Is(loaded, ebpf.ErrNotSupported) {
		return "CONFIG_CGROUP_BPF"
	}
	return ""
}

// programsForbidden reports whether a user is not root of the machine. uidMap is /proc/self/uid_map.
func programsForbidden(uidMap string, uid int) bool {
	f := strings.Fields(uidMap)
	return len(f) != 3 || f[2] != "4294967295" || uid != 0
}
