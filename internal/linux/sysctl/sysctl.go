// Package sysctl reads and writes kernel parameters and other files of the kernel. It writes only values that
// differ, so that an unprivileged process can run after a privileged one has written them.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Options for New.
type Options struct {
	Root  string // folder in place of "/"
	NetNS int    // file descriptor of the network namespace for net.* and files; 0: the current one
}

// Sysctl gives access to the parameters of a host, and to other values that the kernel shows in files: parameters of
// modules, settings of a process. The name of a parameter has slashes or dots; an interface name with dots needs
// slashes. The name of another value is its path, which begins with a slash.
type Sysctl struct{ opts Options }

// New returns access to the parameters.
func New(opts Options) *Sysctl { return &Sysctl{opts: opts} }

// ErrNotFound is the error of a parameter that the kernel does not have.
var ErrNotFound = errors.New("no such kernel parameter")

// Get returns a value, without white space around it.
func (s *Sysctl) Get(name string) (string, error) {
	path, err := s.path(name)
	if err != nil {
		return "", err
	}
	value, err := read(s.opts.NetNS, path)
	if err != nil {
		return "", explain(name, "", err)
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

// Match returns the values of all parameters whose name with slashes matches a pattern of path.Match:
// "net/ipv4/conf/*/forwarding". It leaves out parameters that are removed meanwhile, with their interface.
func (s *Sysctl) Match(pattern string) (map[string]string, error) {
	values := map[string]string{}
	err := netns.Do(s.opts.NetNS, func() error {
		folder := s.folder()
		names, err := fs.Glob(os.DirFS(folder), pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			b, err := os.ReadFile(filepath.Join(folder, name))
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

// Set sets a value, unless it is the current one.
func (s *Sysctl) Set(name, value string) error {
	path, err := s.path(name)
	if err != nil {
		return err
	}
	have, err := s.Get(name)
	if err == nil && strings.Join(strings.Fields(have), " ") == strings.Join(strings.Fields(value), " ") {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrPermission) { // some parameters are write-only
		return err
	}
	err = netns.Do(s.opts.NetNS, func() error { return write(path, value) })
	if err != nil {
		return explain(name, value, err)
	}
	return nil
}

// Writable returns why this process may not set a value; nil if it may. It sets none.
func (s *Sysctl) Writable(name string) error {
	path, err := s.path(name)
	if err != nil {
		return err
	}
	return netns.Do(s.opts.NetNS, func() error {
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

// folder is where the kernel shows its parameters.
func (s *Sysctl) folder() string { return filepath.Join("/", s.opts.Root, "proc/sys") }

// path returns the file of a value.
func (s *Sysctl) path(name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return filepath.Join("/", s.opts.Root, name), nil
	}
	local := name
	if !strings.Contains(name, "/") {
		local = strings.ReplaceAll(name, ".", "/")
	}
	if !filepath.IsLocal(local) {
		return "", fmt.Errorf("sysctl %q: not the name of a kernel parameter", name)
	}
	return filepath.Join(s.folder(), local), nil
}

// explain adds the name and advice to an error. A value of "" means that it was read.
func explain(name, value string, err error) error {
	isFile := strings.HasPrefix(name, "/")
	if failed, is := errors.AsType[*fs.PathError](err); is {
		err = failed.Err // without the path, which the name is, or says
	}
	what := name
	if !isFile {
		what = "sysctl " + name
	}
	if value == "" {
		what = "read " + what
	} else {
		what = fmt.Sprintf("set %s=%s", what, value)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isFile:
		return fmt.Errorf("%s: %w: load the kernel module it belongs to, or use a kernel that has it", what, ErrNotFound)
	case value == "":
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, syscall.EOPNOTSUPP):
		return fmt.Errorf("%s: %w: only the network namespace of the host may write it", what, err)
	case Forbidden(err) && isFile:
		return fmt.Errorf("%s: %w: run privileged, or write it beforehand", what, err)
	case Forbidden(err):
		return fmt.Errorf("%s: %w: run privileged with a writable /proc/sys, or set it beforehand with: sysctl -w %s=%q",
			what, err, name, value)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ERANGE):
		return fmt.Errorf("%s: %w: the kernel rejects this value", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Forbidden reports whether an error means that this process may not set a parameter.
func Forbidden(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}
