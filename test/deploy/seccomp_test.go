//go:build linux

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// install has the kernel filter the system calls of this thread.
func install(filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

// What a filter says of a system call.
const (
	retAllow  = 0x7fff0000 // SECCOMP_RET_ALLOW
	retErrno  = 0x00050000 // SECCOMP_RET_ERRNO, with the number in the low half
	retForbid = retErrno | uint32(unix.EPERM)
	retNone   = retErrno | uint32(unix.ENOSYS)
)

// Where struct seccomp_data has the number and the first argument.
const (
	dataNumber = 0
	dataFirst  = 16
)

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func end(verdict uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: verdict}
}

// when says a verdict on one system call.
func when(number int, verdict uint32) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(number), Jf: 1},
		end(verdict),
	}
}

// numbers are those of all system calls of this machine, as x/sys knows them.
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

// runtimeDefault does what the profile RuntimeDefault of containerd and Docker
// does to a container that has no capability but NET_ADMIN: these, and new
// namespaces, are refused (docs.docker.com/engine/security/seccomp lists them).
// The profile itself is a list of what is allowed.
func runtimeDefault(t *testing.T) []unix.SockFilter {
	t.Helper()
	const refused = `acct add_key bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module
		fsconfig fsmount fsopen fspick get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup
		ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages mount mount_setattr
		move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd
		pivot_root process_vm_readv process_vm_writev quotactl quotactl_fd reboot request_key set_mempolicy
		setdomainname sethostname setns settimeofday swapoff swapon sysfs syslog umount2 unshare uselib userfaultfd
		ustat vhangup`
	all := numbers(t)
	filter := []unix.SockFilter{load(dataNumber)}
	for name := range strings.FieldsSeq(refused) {
		if number, here := all[name]; here {
			filter = append(filter, when(number, retForbid)...)
		}
	}
	// Runtimes cannot look into clone3, so it is as if there were none.
	filter = append(filter, when(all["clone3"], retNone)...)
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	return append(filter,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(all["clone"]), Jf: 3},
		load(dataFirst),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: namespaces, Jf: 1},
		end(retForbid),
		end(retAllow),
	)
}

// only lets nothing through but system calls of these names, and sockets of
// these families; calls that this machine has not are passed over.
func only(t *testing.T, names []string, families ...int) []unix.SockFilter {
	t.Helper()
	all := numbers(t)
	filter := []unix.SockFilter{
		load(dataNumber),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(all["socket"]), Jf: uint8(2*len(families) + 2)},
		load(dataFirst),
	}
	for _, family := range families {
		filter = append(filter, when(family, retAllow)...)
	}
	filter = append(filter, end(retForbid))
	for _, name := range names {
		if number, here := all[name]; here {
			filter = append(filter, when(number, retAllow)...)
		}
	}
	return append(filter, end(retForbid))
}
