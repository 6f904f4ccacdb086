package bpf

import (
	"bufio"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// FindRoot returns where cgroup v2 is mounted; ErrNoCgroup if it is not. A container may have its own cgroups, and
// those of the host at another place.
func FindRoot() (path string, err error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read from
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) <= 4 || !strings.Contains(lines.Text(), " - cgroup2 ") {
			continue
		}
		if at := unescape(words[4]); path == "" || rank(at) > rank(path) {
			path = at
		}
	}
	if err := lines.Err(); err != nil || path != "" {
		return path, err
	}
	return "", ErrNoCgroup
}

// rank orders mounts of cgroup v2, the best one highest: the root of all cgroups first, then a writable mount.
func rank(path string) int {
	n := 0
	if VerifyRoot(path) == nil {
		n += 2
	}
	if unix.Access(path, unix.W_OK) == nil {
		n++
	}
	return n
}

// unescape decodes the octal escapes in paths of mountinfo.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
