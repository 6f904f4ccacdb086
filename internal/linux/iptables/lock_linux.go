package iptables

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lockHolder names the process that holds a lock file: "iptables (process 812)". It does not know a process in
// another PID namespace, which /proc/locks does not show (proc(5)).
func lockHolder(path string) string {
	pid := 0
	var file unix.Stat_t
	if locks, err := os.ReadFile("/proc/locks"); err == nil && unix.Stat(path, &file) == nil {
		pid = locker(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(file.Dev), unix.Minor(file.Dev), file.Ino))
	}
	if pid == 0 {
		return "another process"
	}
	program, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("%s (process %d)", strings.TrimSpace(string(program)), pid)
}

// locker returns the process that has locked a file, given by device and inode; 0 if it is not listed. A line is "1:
// FLOCK ADVISORY WRITE 52 00:1a:7 0 EOF", with "->" after the number if the process waits.
func locker(locks, file string) int {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}
