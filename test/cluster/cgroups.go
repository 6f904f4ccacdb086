//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupName is the cgroup of a cluster in each hierarchy, followed by the PID of its first process.
const cgroupName = "sluice-cluster-"

// cgroupsNamed returns the folders of a cgroup at the root of each mounted hierarchy, v1 and v2.
func cgroupsNamed(name string) ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for line := range strings.Lines(string(mounts)) { // proc_pid_mountinfo(5)
		front, back, _ := strings.Cut(line, " - ")
		words := strings.Fields(front)
		if kind, _, _ := strings.Cut(back, " "); (kind == "cgroup" || kind == "cgroup2") && len(words) > 4 {
			dirs = append(dirs, filepath.Join(words[4], name))
		}
	}
	if len(dirs) == 0 {
		return nil, errors.New("no cgroups are mounted")
	}
	return dirs, nil
}

// makeCgroups makes a cgroup in each hierarchy, and returns their folders.
func makeCgroups(name string) ([]string, error) {
	dirs, err := cgroupsNamed(name)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		if err := makeCgroup(dir); err != nil {
			return nil, errors.Join(err, removeCgroups(dirs))
		}
	}
	return dirs, nil
}

// makeCgroup makes one cgroup. In v1 a cgroup of cpuset is empty first; in v2 its processes may use what its parent
// may.
func makeCgroup(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a cgroup: %w", err)
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err != nil || isV2(dir) {
			continue // of another controller
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
			return fmt.Errorf("make a cgroup: %w", err)
		}
	}
	return nil
}

func isV2(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.subtree_control"))
	return err == nil
}

// delegate lets the cgroups below one of v2 use all controllers that it has. Nothing may run in it (cgroups(7)).
func delegate(dir string) error {
	if !isV2(dir) {
		return nil
	}
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for c := range strings.FieldsSeq(string(controllers)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			return fmt.Errorf("use the cgroup controller %s: %w", c, err)
		}
	}
	return nil
}

// enter moves a process into cgroups, which it makes.
func enter(dirs []string, pid int) error {
	for _, dir := range dirs {
		if err := makeCgroup(dir); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, pid), 0); err != nil {
			return fmt.Errorf("enter a cgroup: %w", err)
		}
	}
	return nil
}

// below returns the folders of a cgroup in others.
func below(dirs []string, name string) []string {
	var out []string
	for _, dir := range dirs {
		out = append(out, filepath.Join(dir, name))
	}
	return out
}

// removeCgroups removes cgroups and all cgroups in them. Their processes have been killed.
func removeCgroups(dirs []string) error {
	var failed error
	for range 600 { // a minute
		failed = nil
		for _, dir := range dirs {
			failed = errors.Join(failed, removeTree(dir))
		}
		if failed == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond) // the kernel ends processes meanwhile
	}
	return failed
}

// removeTree removes a cgroup and the cgroups in it, the innermost first.
func removeTree(dir string) error {
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil // it may have been removed meanwhile
	})
	for _, path := range slices.Backward(all) {
		if e := unix.Rmdir(path); e != nil && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("remove the cgroup %s: %w", path, e))
		}
	}
	return err
}

// mountCgroups mounts the hierarchies of this process again, below a folder: it sees its own cgroups as their roots,
// if it is in a cgroup namespace of its own.
func mountCgroups(at string) error {
	hierarchies, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	v1 := strings.Contains(string(hierarchies), ":cpu") || strings.Contains(string(hierarchies), ":memory")
	if v1 {
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	for line := range strings.Lines(string(hierarchies)) { // cgroups(7)
		words := strings.SplitN(strings.TrimSpace(line), ":", 3)
		dir, kind, options := at, "cgroup2", ""
		switch controllers := words[1]; {
		case controllers != "":
			dir, kind, options = filepath.Join(at, strings.TrimPrefix(controllers, "name=")), "cgroup", controllers
			if strings.HasPrefix(controllers, "name=") {
				options = "none," + controllers
			}
		case v1:
			dir = filepath.Join(at, "unified")
		}
		if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount(kind, dir, kind, 0, options)); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	return nil
}
