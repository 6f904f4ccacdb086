package config

import (
	"cmp"
	"path"
)

const ebpfMode = "ebpf"

// EBPF are settings of the mode ebpf. They are there in each mode, as its programs are removed in others.
type EBPF struct {
	Dir    string // on a bpffs, for the maps and programs
	Cgroup string // programs are for the processes in this cgroup; empty: in all
}

// defaultBPFDir is on the bpffs that init systems mount.
const defaultBPFDir = "/sys/fs/bpf/sluice"

// ebpf returns the settings of the mode ebpf.
func (c *check) ebpf() EBPF {
	e := EBPF{Dir: cmp.Or(c.own.BPFDir, defaultBPFDir), Cgroup: c.own.CgroupRoot}
	for flag, value := range map[string]string{"bpf-dir": e.Dir, "cgroup-root": e.Cgroup} {
		if value != "" && (!path.IsAbs(value) || path.Clean(value) != value || value == "/") {
			c.flagProblem(flag, invalid(value, "must be an absolute path of a folder"))
		}
	}
	if c.config.Mode == ebpfMode {
		return e
	}
	for _, flag := range []string{"bpf-dir", "cgroup-root"} {
		if _, given := c.flags[flag]; given && !c.own.Cleanup {
			c.warn("--%s has an effect in mode ebpf and with --cleanup only: the mode is %s", flag, c.config.Mode)
		}
	}
	return e
}
