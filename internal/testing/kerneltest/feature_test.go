package kerneltest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestProgramsMissing(t *testing.T) {
	const complete = "nodev\tcgroup2\nnodev\tbpf\n\text4\n"
	unknown := fmt.Errorf("detect support for CGroupSockAddr: %w", ebpf.ErrNotSupported)
	for _, c := range []struct {
		filesystems string
		loaded      error
		want        string
	}{
		{complete, nil, ""},
		{complete, unix.EPERM, ""},
		{complete, errors.New("another"), ""},
		{complete, unknown, "CONFIG_CGROUP_BPF"},
		{"nodev\tcgroup\nnodev\tbpf\n", unknown, "file system cgroup2"},
		{"nodev\tcgroup2\n\text4\n", unknown, "file system bpf"},
	} {
		if got := programsMissing(c.filesystems, c.loaded); got != c.want {
			t.Errorf("%q, %v: %q is missing, want %q", c.filesystems, c.loaded, got, c.want)
		}
	}
}

func TestProgramsForbidden(t *testing.T) {
	const machine, namespace = "         0          0 4294967295\n", "         0       1000          1\n"
	for _, c := range []struct {
		uidMap string
		uid    int
		want   bool
	}{{machine, 0, false}, {machine, 1000, true}, {namespace, 0, true}, {"", 0, true}} {
		if got := programsForbidden(c.uidMap, c.uid); got != c.want {
			t.Errorf("%q, user %d: forbidden %t, want %t", c.uidMap, c.uid, got, c.want)
		}
	}
}
