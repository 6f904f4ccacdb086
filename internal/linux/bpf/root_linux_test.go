package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Where cgroup v2 is mounted nowhere, it is mounted for this process alone, and programs work with that. The test uses a
// cgroup of its own below the root.
func TestPrivateRoot(t *testing.T) {
	o := selfTestOptions(t)
	mounted, err := MountedRoot()
	if err != nil {
		t.Fatal(err)
	}
	below := strings.TrimPrefix(o.Cgroup, mounted)
	options := mountOptions(t, mounted)
	err = withoutCgroups(nil, func() error {
		if path, err := MountedRoot(); path != "" || err != nil {
			return errors.Join(err, errors.New("it is still mounted at "+path))
		}
		root, err := FindRoot()
		if err != nil {
			return err
		}
		if path, err := MountedRoot(); path != "" || err != nil || !root.Private() {
			t.Errorf("others see it at %q: %v", path, err)
		}
		if err := VerifyRoot(root.Path); err != nil {
			t.Error(err)
		}
		if seen := 0; filepath.WalkDir(root.Path, func(string, os.DirEntry, error) error { seen++; return filepath.SkipDir }) != nil || seen != 1 {
			t.Errorf("a walk sees %d folders", seen)
		}
		o.Cgroup = filepath.Join(root.Path, below)
		if err := Try(o); err != nil {
			t.Error(err)
		}
		noProbes(t, o.Cgroup)
		return root.Close()
	})
	if err != nil {
		t.Error(err)
	}
	if now := mountOptions(t, mounted); now != options {
		t.Errorf("the machine's cgroups are mounted with %s, was %s", now, options)
	}
}

// If cgroup v2 is mounted several times, as in a container, FindRoot prefers the root of all cgroups, and then a writable mount.
func TestBestRoot(t *testing.T) {
	kerneltest.NeedPrograms(t)
	mounted, err := MountedRoot()
	if err != nil {
		t.Fatal(err)
	}
	group, part, fixed, whole := lab.Cgroup(t), t.TempDir(), t.TempDir(), t.TempDir()
	binds := func() error {
		return errors.Join(unix.Mount(group, part, "", unix.MS_BIND, ""), unix.Mount(mounted, fixed, "", unix.MS_BIND, ""),
			unix.Mount("", fixed, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""), unix.Mount(mounted, whole, "", unix.MS_BIND, ""))
	}
	err = withoutCgroups(binds, func() error {
		for _, want := range []string{whole, fixed, part, ""} {
			got, err := MountedRoot()
			if err != nil || got != want {
				return errors.Join(err, errors.New("it finds "+got+", want "+want))
			}
			if want != "" {
				err = unix.Unmount(want, unix.MNT_DETACH)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// withoutCgroups calls f in a mount namespace without the mount of cgroup v2 that this process sees. mount, unless nil, adds others there.
func withoutCgroups(mount, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		original, findErr := MountedRoot()
		if err = errors.Join(err, findErr); err == nil && mount != nil {
			err = mount()
		}
		if err == nil {
			err = unix.Unmount(original, unix.MNT_DETACH)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// mountOptions returns the line of a mount.
func mountOptions(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if words := strings.Fields(line); words[4] == path {
			return strings.Join(words[5:], " ")
		}
	}
	t.Fatalf("%s is not mounted", path)
	return ""
}

func TestMountedRoot(t *testing.T) {
	kerneltest.NeedPrograms(t) // for which it finds the root
	root, err := FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	cgroup := lab.Cgroup(t)
	if root.Private() || !strings.HasPrefix(cgroup, root.Path+"/") {
		t.Errorf("the root is %q, and a cgroup %q", root.Path, cgroup)
	}
	if err := root.Close(); err != nil {
		t.Error(err)
	}
}
