package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Capabilities returns the effective capabilities of this thread among those that a mode of Sluice may need, by name.
func Capabilities() ([]string, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil, fmt.Errorf("read own capabilities: %w", err)
	}
	var names []string
	for _, c := range []struct {
		name string
		bit  int
	}{
		{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN},
		{"CAP_NET_RAW", unix.CAP_NET_RAW},
		{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE},
		{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN},
		{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE},
		{"CAP_BPF", unix.CAP_BPF},
	} {
		if data[c.bit/32].Effective&(1<<(c.bit%32)) != 0 {
			names = append(names, c.name)
		}
	}
	return names, nil
}
