package sysctl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Get returns what Set wrote. A missing file is an error, and is not created.
func TestFiles(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "hashsize"), []byte("16\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := sysctl.New(sysctl.Options{Root: root})
	if got, err := f.Get("/hashsize"); got != "16" || err != nil {
		t.Errorf("before: %q, %v", got, err)
	}
	if err := f.Set("/hashsize", "32"); err != nil {
		t.Error(err)
	}
	if got, err := f.Get("/hashsize"); got != "32" || err != nil {
		t.Errorf("after: %q, %v", got, err)
	}
	if err := f.Set("/gone", "1"); !errors.Is(err, fs.ErrNotExist) ||
		err.Error() != "read /gone: no such file or directory" {
		t.Errorf("set a missing file: %v", err)
	}
	if _, err := f.Get("/gone"); !errors.Is(err, fs.ErrNotExist) ||
		err.Error() != "read /gone: no such file or directory" {
		t.Errorf("get a missing file: %v", err)
	}
}

// The conntrack table belongs to the host: from another network namespace the kernel does
// not accept a size, not even the current one, here in hexadecimal.
func TestFilesOfTheHostFromANamespace(t *testing.T) {
	const path = "/sys/module/nf_conntrack/parameters/hashsize"
	f := sysctl.New(sysctl.Options{NetNS: kerneltest.Namespace(t)})
	now, err := f.Get(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		t.Skipf("the table does not exist, or cannot be read: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	size, err := strconv.Atoi(now)
	if err != nil {
		t.Fatal(err)
	}
	err = f.Set(path, fmt.Sprintf("%#x", size))
	if !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "network namespace of the host") {
		t.Errorf("error %v", err)
	}
}
