package process

import (
	"math"
	"time"

	"golang.org/x/sys/windows"
)

// CPUTime returns the CPU time of this process; 0 if it cannot be read.
func CPUTime() time.Duration {
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &kernel, &user); err != nil {
		return 0
	}
	return duration(kernel) + duration(user)
}

// duration converts a length of time, which Windows counts in units of 100 ns.
func duration(t windows.Filetime) time.Duration {
	const unit = 100 * time.Nanosecond
	return time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime)) * unit
}

// DescriptorLimit returns the largest number: Windows sets no limit of handles that a
// process reaches before its memory ends.
func DescriptorLimit() (int, error) { return math.MaxInt32, nil }
