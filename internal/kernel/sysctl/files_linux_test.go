package sysctl_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/sysctl"
)

// What was written is read, and a file that is not there is not made.
func TestFiles(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "hashsize"), []byte("16\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := sysctl.NewFiles(sysctl.Options{Root: root})
	if got, err := f.Get("/hashsize"); got != "16" || err != nil {
		t.Errorf("before: %q, %v", got, err)
	}
	if err := f.Set("/hashsize", "32"); err != nil {
		t.Error(err)
	}
	if got, err := f.Get("/hashsize"); got != "32" || err != nil {
		t.Errorf("after: %q, %v", got, err)
	}
	if err := f.Set("/gone", "1"); !errors.Is(err, fs.ErrNotExist) || err.Error() != "write 1 to /gone: no such file or directory" {
		t.Errorf("set what is not there: %v", err)
	}
	if _, err := f.Get("/gone"); !errors.Is(err, fs.ErrNotExist) || err.Error() != "read /gone: no such file or directory" {
		t.Errorf("get what is not there: %v", err)
	}
}

// The table of connections is the host's: from another network namespace the
// kernel takes no size for it, not even the one it has.
func TestFilesOfTheHostFromANamespace(t *testing.T) {
	const path = "/sys/module/nf_conntrack/parameters/hashsize"
	f := sysctl.NewFiles(sysctl.Options{NetNS: kerneltest.Namespace(t)})
	now, err := f.Get(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		t.Skipf("no such table here, or not for this user: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	err = f.Set(path, now)
	if !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "network namespace of the host") {
		t.Errorf("error %v", err)
	}
}
