package sysctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Files gives access to values of the kernel in files outside of /proc/sys: parameters
// of modules, settings of a process.
type Files struct {
	root  string
	netns int
}

// NewFiles returns access to files below the folder Root, "/" if empty. It opens them
// in the network namespace of the options, as the values of some differ between
// network namespaces.
func NewFiles(opts Options) *Files {
	if opts.Root == "" {
		opts.Root = "/"
	}
	return &Files{root: opts.Root, netns: opts.NetNS}
}

// Get returns the content of a file, without white space around it.
func (f *Files) Get(path string) (string, error) {
	value, err := read(f.netns, filepath.Join(f.root, path))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, cause(err))
	}
	return value, nil
}

// Set writes a value to a file.
func (f *Files) Set(path, value string) error {
	err := netns.Do(f.netns, func() error { return write(filepath.Join(f.root, path), value) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("write %s to %s: %w: only the network namespace of the host may write it", value, path, cause(err))
	case Forbidden(err):
		return fmt.Errorf("write %s to %s: %w: run privileged, or write it beforehand", value, path, cause(err))
	}
	return fmt.Errorf("write %s to %s: %w", value, path, cause(err))
}

// Writable returns why this process may not open a file for writing; nil if it may.
func (f *Files) Writable(path string) error { return writable(f.netns, filepath.Join(f.root, path)) }

// cause returns an error without its path.
func cause(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}
