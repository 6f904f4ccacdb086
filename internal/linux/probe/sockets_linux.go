package probe

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
)

// Sockets tries whether programs can balance the sockets of a cgroup, and leaves nothing behind. The error
// has a sentence with the remedy, and is ErrPrivilege or ErrFeature.
func Sockets(o bpf.Options) error { return SocketsError(bpf.Try(o)) }

// SocketsError adds the remedy to an error of bpf.Try, or of the search for the cgroups.
func SocketsError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bpf.ErrOthers):
		return fmt.Errorf("%w: packets must have the addresses of Services while programs of another project "+
			"run for all sockets, which may change or refuse backends: detach them; see: bpftool cgroup tree (%w)",
			ErrFeature, err)
	case errors.Is(err, bpf.ErrNoBPFFS):
		return fmt.Errorf("%w: maps have no place to stay (%w): mount it with: mount -t bpf -o mode=700 bpf /sys/fs/bpf, "+
			"or name a folder on another bpffs with --bpf-dir", ErrFeature, err)
	case errors.Is(err, bpf.ErrNoCgroup):
		return fmt.Errorf("%w: programs have nothing to be attached to (%w): "+
			"mount it with: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified, or name the folder with --cgroup-root",
			ErrFeature, err)
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: programs for sockets need the capabilities CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN "+
			"before Linux 5.8, and a bpffs that is writable: run as root, or grant them (%w)",
			ErrPrivilege, err)
	}
	if failed, is := errors.AsType[*ebpf.VerifierError](err); is {
		return fmt.Errorf("%w: the kernel does not accept the programs for sockets: "+
			"use Linux 5.15 or newer with CONFIG_CGROUP_BPF (%w)", ErrFeature, failed)
	}
	return fmt.Errorf("%w: programs for sockets do not work: "+
		"use Linux 5.15 or newer with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF (%w)", ErrFeature, err)
}
