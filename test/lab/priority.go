//go:build linux

package lab

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Priority is the nice value of tests in namespaces and of the programs that they start.
const Priority = -10

// RaisePriority raises the scheduling priority of this thread, and so of the process that
// Enter starts: such tests wait for the kernel within bounds, which must not depend on compilers and on
// tests that only compute. Without the right to do so, the priority stays.
func RaisePriority() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, Priority)
}
