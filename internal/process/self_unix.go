//go:build unix

package process

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time of this process and of the programs that it ran and waited for; 0 if it cannot be read.
func CPUTime() time.Duration {
	total := time.Duration(0)
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return 0
		}
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}

// DescriptorLimit returns how many file descriptors this process may have
// (RLIMIT_NOFILE). The Go runtime has raised the soft limit to the hard one.
func DescriptorLimit() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of file descriptors: %w", err)
	}
	return int(min(limit.Cur, math.MaxInt32)), nil
}
