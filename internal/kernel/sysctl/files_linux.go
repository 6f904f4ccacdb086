package sysctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// Files gives access to what the kernel shows in files outside of /proc/sys:
// parameters of modules, the settings of a process.
type Files struct {
	root  string
	netns int
}

// NewFiles returns access to files. Root is the folder to look for them in, "/"
// if empty. Some have a meaning of their own in each network namespace, so they
// are used from that of the options.
func NewFiles(opts Options) *Files {
	if opts.Root == "" {
		opts.Root = "/"
	}
	return &Files{root: opts.Root, netns: opts.NetNS}
}

// Get returns what a file says, without white space around it.
func (f *Files) Get(path string) (string, error) {
	var value string
	err := netns.Do(f.netns, func() error {
		b, err := os.ReadFile(filepath.Join(f.root, path))
		value = strings.TrimSpace(string(b))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, cause(err))
	}
	return value, nil
}

// Set writes a value, whatever the file says now.
func (f *Files) Set(path, value string) error {
	err := netns.Do(f.netns, func() error { return write(filepath.Join(f.root, path), value) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("write %s to %s: %w: only the network namespace of the host may", value, path, cause(err))
	case Forbidden(err):
		return fmt.Errorf("write %s to %s: %w: run privileged, or write it beforehand", value, path, cause(err))
	}
	return fmt.Errorf("write %s to %s: %w", value, path, cause(err))
}

// cause takes the path out of an error that names it already.
func cause(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}
