package bpf

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// FindRoot returns where cgroup v2 is mounted, preferably the root of all cgroups; ErrNoCgroup if it is not mounted. A
// container may have its own cgroups, and those of the host at another place.
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
		if at := unescape(words[4]); path == "" || VerifyRoot(path) != nil && VerifyRoot(at) == nil {
			path = at
		}
	}
	if err := lines.Err(); err != nil || path != "" {
		return path, err
	}
	return "", ErrNoCgroup
}

// VerifyRoot returns an error unless the cgroup is the root of all cgroups. A container may see only its own cgroups.
func VerifyRoot(cgroup string) error {
	id, err := CgroupID(cgroup)
	if err != nil {
		return err
	}
	if id != 1 {
		return fmt.Errorf("programs see a part of the processes only: %s is not the root of all cgroups", cgroup)
	}
	return nil
}

// unescape decodes the octal escapes in paths of mountinfo.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
