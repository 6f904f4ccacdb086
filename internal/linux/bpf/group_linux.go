package bpf

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// groupPrefix begins the names of cgroups that exist during a self-test only.
const groupPrefix = "sluice-probe-"

// group is a cgroup that exists during a self-test. Its folder is locked, so that removeStale keeps it.
type group struct {
	path string
	dir  *os.File
}

// newGroup makes a cgroup below another one.
func newGroup(at string) (*group, error) {
	path, err := os.MkdirTemp(at, groupPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	return openGroup(path)
}

// newBelow makes a cgroup in this one.
func (g *group) newBelow() (*group, error) {
	path := filepath.Join(g.path, groupPrefix+"below")
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	return openGroup(path)
}

// openGroup locks a new cgroup.
func openGroup(path string) (*group, error) {
	g := &group{path: path}
	var err error
	if g.dir, err = os.Open(path); err == nil {
		err = unix.Flock(int(g.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		g.remove()
		return nil, fmt.Errorf("set up a cgroup: %w", err)
	}
	return g, nil
}

// remove removes the cgroup.
func (g *group) remove() {
	_ = os.Remove(g.path) // the next start tries again
	if g.dir != nil {
		_ = g.dir.Close() // it was only locked
	}
}

// removeStale removes the cgroups of self-tests that were killed.
func removeStale(at string) error {
	list, err := filepath.Glob(filepath.Join(at, groupPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range list {
		dir, err := os.Open(path)
		if err != nil {
			continue // it is gone
		}
		if unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil { // its test has ended
			_ = os.Remove(filepath.Join(path, groupPrefix+"below")) // it may not be there
			_ = os.Remove(path)                                     // the next start tries again
		}
		_ = dir.Close() // it was only locked
	}
	return nil
}
