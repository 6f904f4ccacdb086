package sysctl_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// folder creates a root with one parameter.
func folder(t *testing.T, key, value string) (*sysctl.Sysctl, string) {
	t.Helper()
	root := t.TempDir()
	path := filepath.Join(root, "proc/sys", filepath.FromSlash(strings.ReplaceAll(key, ".", "/")))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return sysctl.New(sysctl.Options{Root: root}), path
}

func TestSet(t *testing.T) {
	cases := []struct {
		name, have, set, want string
		written               bool
	}{
		{"different", "0", "1", "1", true},
		{"same", "1", "1", "1", false},
		{"same except for white space", "4096\t87380  6291456", "4096 87380 6291456", "4096\t87380  6291456", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, path := folder(t, "net.ipv4.ip_forward", c.have)
			old := time.Now().Add(-time.Hour)
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
			if err := s.Set("net.ipv4.ip_forward", c.set); err != nil {
				t.Fatal(err)
			}
			got, err := s.Get("net/ipv4/ip_forward")
			if err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if written := info.ModTime().After(old.Add(time.Minute)); written != c.written {
				t.Errorf("written: %v, want %v", written, c.written)
			}
		})
	}
}

// An error contains the parameter, the value, and advice.
func TestErrors(t *testing.T) {
	s, _ := folder(t, "net.ipv4.ip_forward", "yes")
	_, missing := s.Get("net.netfilter.nf_conntrack_max")
	cases := []struct {
		name     string
		err      error
		is       error
		contains []string
	}{
		{"missing", missing, sysctl.ErrNotFound, []string{"net.netfilter.nf_conntrack_max", "kernel module"}},
		{"set missing", s.Set("net.x", "3"), sysctl.ErrNotFound, []string{"net.x"}},
		{"escape", s.Set("../../etc/passwd", "1"), nil, []string{"../../etc/passwd", "not the name"}},
		{"empty", s.Set("", "1"), nil, []string{"not the name"}},
	}
	for _, c := range cases {
		if c.err == nil || (c.is != nil && !errors.Is(c.err, c.is)) {
			t.Errorf("%s: %v", c.name, c.err)
			continue
		}
		for _, word := range c.contains {
			if !strings.Contains(c.err.Error(), word) {
				t.Errorf("%s: %q lacks %q", c.name, c.err, word)
			}
		}
	}
}

// If the kernel refuses a write, the error contains advice.
func TestKernelRefuses(t *testing.T) {
	s := sysctl.New(sysctl.Options{NetNS: kerneltest.Namespace(t)})
	err := s.Set("net.ipv4.conf.lo.forwarding", "many")
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "net.ipv4.conf.lo.forwarding=many") {
		t.Errorf("bad value: %v", err)
	}
	err = s.Set("kernel.osrelease", "7.0") // read-only
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "sysctl -w kernel.osrelease=") {
		t.Errorf("read-only: %v", err)
	}
}

// Writable says which parameters this process may set, and sets none.
func TestWritable(t *testing.T) {
	s := sysctl.New(sysctl.Options{NetNS: kerneltest.Namespace(t)})
	const key = "net.ipv4.conf.lo.forwarding"
	before, err := s.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Writable(key); err != nil {
		t.Errorf("%s: %v", key, err)
	}
	if after, err := s.Get(key); after != before || err != nil {
		t.Errorf("%s is %s, was %s: %v", key, after, before, err)
	}
	for _, key := range []string{"kernel.osrelease", "net.none", "../x"} {
		if s.Writable(key) == nil {
			t.Errorf("%s may be set", key)
		}
	}
	if err := sysctl.New(sysctl.Options{}).Writable("/proc/sys/kernel/osrelease"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file: %v", err)
	}
}

// Parameters are those of the given namespace.
func TestNamespace(t *testing.T) {
	one := sysctl.New(sysctl.Options{NetNS: kerneltest.Namespace(t)})
	two := sysctl.New(sysctl.Options{NetNS: kerneltest.Namespace(t)})
	const key = "net.ipv4.conf.lo.route_localnet"
	before, err := two.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"0": "1", "1": "0"}[before]
	if err := one.Set(key, other); err != nil {
		t.Fatal(err)
	}
	first, err1 := one.Get(key)
	second, err2 := two.Get(key)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if first != other || second != before {
		t.Errorf("%s and %s, want %s and %s", first, second, other, before)
	}
}

func TestMatchReturnsParametersByPattern(t *testing.T) {
	s := sysctl.New(sysctl.Options{NetNS: kerneltest.Namespace(t)})
	if err := s.Set("net/ipv4/conf/lo/route_localnet", "1"); err != nil {
		t.Fatal(err)
	}
	got, err := s.Match("net/ipv4/conf/*/route_localnet")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"lo": "1", "all": "", "default": ""} {
		value, there := got["net/ipv4/conf/"+name+"/route_localnet"]
		if !there || want != "" && value != want {
			t.Errorf("%s is %q, want %q; all: %v", name, value, want, got)
		}
	}
	if got, err := s.Match("net/ipv4/conf/*/no_such_parameter"); err != nil || len(got) > 0 {
		t.Errorf("a pattern without matches returns %v, %v", got, err)
	}
}
