package process

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// DescriptorLimit returns how many file descriptors this process may have
// (RLIMIT_NOFILE). The Go runtime has raised the soft limit to the hard one.
func DescriptorLimit() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of file descriptors: %w", err)
	}
	return int(min(limit.Cur, math.MaxInt32)), nil
}
