package config

import (
	"cmp"
	"path"
	"strings"
)

const ebpfMode = "ebpf"

// EBPF are settings of the mode ebpf. They are there in each mode, as its programs are removed in others.
type EBPF struct {
	Dir    string // on a bpffs, for the maps and programs
	Cgroup string // programs are for the processes in this cgroup; empty: in all

	// ExemptCgroups are patterns of path.Match for paths in the cgroup root. Connections of processes in these cgroups,
	// and below, are balanced as packets, not at sockets.
	ExemptCgroups []string

	// ExemptRoot means the same for processes in the root of all cgroups itself, such as threads of the kernel.
	ExemptRoot bool
}

// defaultBPFDir is on the bpffs that init systems mount.
const defaultBPFDir = "/sys/fs/bpf/sluice"

// ebpf returns the settings of the mode ebpf.
func (c *check) ebpf() EBPF {
	e := EBPF{Dir: cmp.Or(c.own.BPFDir, defaultBPFDir), Cgroup: c.own.CgroupRoot}
	e.ExemptCgroups, e.ExemptRoot = c.exemptCgroups()
	for flag, value := range map[string]string{"bpf-dir": e.Dir, "cgroup-root": e.Cgroup} {
		if value != "" && (!path.IsAbs(value) || path.Clean(value) != value || value == "/") {
			c.problem("--"+flag, invalid(value, "must be an absolute path of a folder"))
		}
	}
	return e
}

// exemptCgroups returns the patterns of cgroups, and whether "/" is among them. The default is the resolver of systemd:
// its sockets name an interface (IP_UNICAST_IF), which programs cannot see.
func (c *check) exemptCgroups() (list []string, root bool) {
	for _, pattern := range splitList(c.own.ExemptCgroups) {
		_, err := path.Match(pattern, "")
		switch {
		case pattern == "/":
			root = true
		case err != nil, path.IsAbs(pattern), path.Clean(pattern) != pattern, pattern == ".",
			strings.HasPrefix(pattern, ".."):
			c.problem("--exempt-cgroups", invalid(pattern,
				"must be / for the root of all cgroups, or a pattern of a path in the cgroup root, such as system.slice/nfs-*"))
		default:
			list = append(list, pattern)
		}
	}
	return list, root
}
