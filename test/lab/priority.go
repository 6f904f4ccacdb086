//go:build linux

package lab

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Priority is the nice value of tests in namespaces and of the programs that they start.
const Priority = -10

// RaisePriority raises the scheduling priority of this process. It is for tests that wait for the kernel within bounds,
// which must not depend on compilers and on tests that only compute. Without the right to do so, the priority stays.
func RaisePriority() {
	threads, _ := os.ReadDir("/proc/self/task") // later ones inherit the priority
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, Priority)
		}
	}
}
