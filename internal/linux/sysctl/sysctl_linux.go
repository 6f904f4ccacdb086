// Package sysctl reads and writes kernel parameters. It writes only values that differ, so
// that an unprivileged process can run after a privileged one has written them.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// defaultRoot is where the kernel shows its parameters.
const defaultRoot = "/proc/sys"

// Options for New.
type Options struct {
	Root  string // folder of the parameters; "": /proc/sys
	NetNS int    // file descriptor of the network namespace for net.*; 0: the current one
}

// Sysctl gives access to the parameters of a host.
type Sysctl struct{ opts Options }

// New returns access to the parameters.
func New(opts Options) *Sysctl {
	if opts.Root == "" {
		opts.Root = defaultRoot
	}
	return &Sysctl{opts: opts}
}

// ErrNotFound is the error of a parameter that the kernel does not have.
var ErrNotFound = errors.New("no such kernel parameter")

// Get returns the value of a parameter, named with slashes or dots, without
// white space around it. An interface name with dots needs slashes.
func (s *Sysctl) Get(key string) (string, error) {
	path, err := s.path(key)
	if err != nil {
		return "", err
	}
	value, err := read(s.opts.NetNS, path)
	if err != nil {
		return "", explain(key, "", err)
	}
	return value, nil
}

// read returns the content of a file without white space around it.
func read(ns int, path string) (value string, err error) {
	err = netns.Do(ns, func() error {
		b, err := os.ReadFile(path)
		value = strings.TrimSpace(string(b))
		return err
	})
	return value, err
}

// Match returns the values of all parameters whose name with slashes matches a pattern of
// path.Match: "net/ipv4/conf/*/forwarding". It leaves out parameters that are removed
// meanwhile, with their interface.
func (s *Sysctl) Match(pattern string) (map[string]string, error) {
	values := map[string]string{}
	err := netns.Do(s.opts.NetNS, func() error {
		names, err := fs.Glob(os.DirFS(s.opts.Root), pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			b, err := os.ReadFile(filepath.Join(s.opts.Root, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			values[name] = strings.TrimSpace(string(b))
		}
		return nil
	})
	if err != nil {
		return nil, explain(pattern, "", err)
	}
	return values, nil
}

// Set sets a parameter, unless it has the value already.
func (s *Sysctl) Set(key, value string) error {
	path, err := s.path(key)
	if err != nil {
		return err
	}
	have, err := s.Get(key)
	if err == nil && strings.Join(strings.Fields(have), " ") == strings.Join(strings.Fields(value), " ") {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrPermission) { // some parameters are write-only
		return err
	}
	err = netns.Do(s.opts.NetNS, func() error { return write(path, value) })
	if err != nil {
		return explain(key, value, err)
	}
	return nil
}

// Writable returns why this process may not set a parameter; nil if it may.
func (s *Sysctl) Writable(key string) error {
	path, err := s.path(key)
	if err != nil {
		return err
	}
	return writable(s.opts.NetNS, path)
}

// writable opens a file for writing, and writes nothing.
func writable(ns int, path string) error {
	return netns.Do(ns, func() error {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return f.Close()
	})
}

// write writes a value to an existing file: a missing parameter is an error.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value + "\n")
	return errors.Join(err, f.Close())
}

// path returns the file of a parameter.
func (s *Sysctl) path(key string) (string, error) {
	name := key
	if !strings.Contains(key, "/") {
		name = strings.ReplaceAll(key, ".", "/")
	}
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("sysctl %q: not the name of a kernel parameter", key)
	}
	return filepath.Join(s.opts.Root, name), nil
}

// explain adds the parameter and advice to an error. A value of "" means that the
// parameter was read.
func explain(key, value string, err error) error {
	what := "read sysctl " + key
	if value != "" {
		what = fmt.Sprintf("set sysctl %s=%s", key, value)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w: load the kernel module it belongs to, or use a kernel that has it", what, ErrNotFound)
	case value == "":
		return fmt.Errorf("%s: %w", what, err)
	case Forbidden(err):
		return fmt.Errorf("%s: %w: run privileged with a writable /proc/sys, or set it beforehand with: sysctl -w %s=%q",
			what, err, key, value)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		return fmt.Errorf("%s: %w: the kernel rejects this value", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Forbidden reports whether an error means that this process may not set a parameter.
func Forbidden(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)
}
