package bpf

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// If cgroup v2 is mounted several times, as in a container, FindRoot prefers the root of all cgroups.
func TestBestRoot(t *testing.T) {
	kerneltest.NeedPrograms(t)
	mounted, err := FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	group, part, whole := lab.Cgroup(t), t.TempDir(), t.TempDir()
	binds := func() error {
		return errors.Join(unix.Mount(group, part, "", unix.MS_BIND, ""), unix.Mount(mounted, whole, "", unix.MS_BIND, ""))
	}
	err = withoutCgroups(binds, func() error {
		for _, want := range []string{whole, part, ""} {
			got, err := FindRoot()
			if got != want || errors.Is(err, ErrNoCgroup) != (want == "") {
				return errors.Join(err, errors.New("it finds "+got+", want "+want))
			}
			if want == "" {
				return nil
			}
			if err := unix.Unmount(want, unix.MNT_DETACH); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// withoutCgroups calls f in a mount namespace without the mount of cgroup v2 that this process sees. mount, unless
// nil, adds others there.
func withoutCgroups(mount, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		original, findErr := FindRoot()
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

func TestFindRoot(t *testing.T) {
	kerneltest.NeedPrograms(t) // for which it finds the root
	root, err := FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	if cgroup := lab.Cgroup(t); !strings.HasPrefix(cgroup, root+"/") {
		t.Errorf("the root is %q, and a cgroup %q", root, cgroup)
	}
}
