package kerneltest

import (
	"errors"
	"os"
	"strings"
	"testing"

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
	if os.Getenv(CompleteVar) != "" {
		t.Fatalf("the kernel of test/uml has no %s: add it to hack/test-kernel.config", feature)
	}
	t.Skipf("this kernel has no %s; test/uml runs this test on a kernel that has it", feature)
}

// ipvs is the name of IPVS among the families of generic netlink.
const ipvs = "IPVS"

// NeedIPVS calls Lacks if the kernel has no IPVS and cannot load it.
func NeedIPVS(t testing.TB) {
	t.Helper()
	if _, err := netlink.GenlFamilyGet(ipvs); errors.Is(err, unix.ENOENT) {
		Lacks(t, ipvs)
	} else if err != nil {
		t.Fatalf("find IPVS: %v", err)
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

// NeedPrograms skips the test if this process may not load programs (eBPF): no user namespace may, whatever the privileges
// in it.
func NeedPrograms(t testing.TB) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	if f := strings.Fields(string(b)); len(f) != 3 || f[2] != "4294967295" || os.Geteuid() != 0 {
		t.Skip("only root of the machine may load programs")
	}
}
