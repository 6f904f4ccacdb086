package machine

import (
	"os/exec"

	"golang.org/x/sys/unix"
)

func kinds() []kind {
	return append([]kind{
		{"fork and exec", spawnReference, func() error { return exec.Command("true").Run() }},
		{"network namespace", namespaceReference, func() error { return unix.Unshare(unix.CLONE_NEWNET) }},
	}, everywhere()...)
}
