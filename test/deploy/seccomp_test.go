//go:build linux

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// installFilter installs a seccomp filter for this thread.
func installFilter(filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

// Return values of a filter.
const (
	retAllow  = 0x7fff0000 // SECCOMP_RET_ALLOW
	retErrno  = 0x00050000 // SECCOMP_RET_ERRNO, with the number in the low half
	retForbid = retErrno | uint32(unix.EPERM)
	retNone   = retErrno | uint32(unix.ENOSYS)
)

// Offsets of the number and the first argument in struct seccomp_data.
const (
	dataNumber = 0
	dataFirst  = 16
)

func loadField(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func ret(verdict uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: verdict}
}

func onCall(number int, verdict uint32) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(number), Jf: 1},
		ret(verdict),
	}
}

// numbers returns the numbers of all system calls of this architecture, from x/sys.
func numbers(t *testing.T) map[string]int {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatalf("find the sources of x/sys: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+runtime.GOARCH+".go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, m := range regexp.MustCompile(`SYS_(\w+)\s+=\s+(\d+)`).FindAllStringSubmatch(string(text), -1) {
		out[strings.ToLower(m[1])], _ = strconv.Atoi(m[2])
	}
	return out
}

// allowedWith returns the system calls that the profile RuntimeDefault allows with a capability.
func allowedWith(capability int) []string {
	switch capability {
	case unix.CAP_BPF:
		return []string{"bpf"}
	case unix.CAP_SYS_ADMIN:
		return strings.Fields(`bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount
			mount_setattr move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns
			syslog umount2 unshare`)
	case unix.CAP_SYS_PTRACE:
		return strings.Fields("kcmp pidfd_getfd process_vm_readv process_vm_writev")
	}
	return nil
}

// runtimeDefault returns a filter equivalent to the profile RuntimeDefault of containerd and
// Docker for a container with some capabilities, of which NET_ADMIN and NET_RAW change nothing: it refuses the
// listed system calls and new namespaces (docs.docker.com/engine/security/seccomp). The real profile is an allow-list.
func runtimeDefault(t *testing.T, capabilities []int) []unix.SockFilter {
	t.Helper()
	const refused = `acct add_key bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module
		fsconfig fsmount fsopen fspick get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup
		ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages mount mount_setattr
		move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd
		pivot_root process_vm_readv process_vm_writev quotactl quotactl_fd reboot request_key set_mempolicy
		setdomainname sethostname setns settimeofday swapoff swapon sysfs syslog umount2 unshare uselib userfaultfd
		ustat vhangup`
	var allowed []string
	for _, c := range capabilities {
		allowed = append(allowed, allowedWith(c)...)
	}
	all := numbers(t)
	filter := []unix.SockFilter{loadField(dataNumber)}
	for name := range strings.FieldsSeq(refused) {
		if number, here := all[name]; here && !slices.Contains(allowed, name) {
			filter = append(filter, onCall(number, retForbid)...)
		}
	}
	if slices.Contains(allowed, "clone3") {
		return append(filter, ret(retAllow))
	}
	// Filters cannot read the flags of clone3, so runtimes report it as unsupported.
	filter = append(filter, onCall(all["clone3"], retNone)...)
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	return append(filter,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(all["clone"]), Jf: 3},
		loadField(dataFirst),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: namespaces, Jf: 1},
		ret(retForbid),
		ret(retAllow),
	)
}

// allowOnly returns a filter that allows only these system calls, and sockets of these families.
// It ignores names that this architecture does not have.
func allowOnly(t *testing.T, names []string, families ...int) []unix.SockFilter {
	t.Helper()
	all := numbers(t)
	filter := []unix.SockFilter{
		loadField(dataNumber),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(all["socket"]), Jf: uint8(2*len(families) + 2)},
		loadField(dataFirst),
	}
	for _, family := range families {
		filter = append(filter, onCall(family, retAllow)...)
	}
	filter = append(filter, ret(retForbid))
	for _, name := range names {
		if number, here := all[name]; here {
			filter = append(filter, onCall(number, retAllow)...)
		}
	}
	return append(filter, ret(retForbid))
}
