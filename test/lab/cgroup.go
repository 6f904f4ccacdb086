//go:build linux

package lab

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// homePrefix begins the names of the cgroups of test processes; the PID follows.
const homePrefix = "sluice-test-"

// Cgroup makes a cgroup, which is removed when the test ends. It is a threaded one: threads of this process enter
// it, see Inside. The process itself enters the cgroup above it, and leaves it at the end of Main.
func Cgroup(t T) string {
	t.Helper()
	home, err := enterHome()
	if err != nil {
		t.Fatalf("enter a cgroup for tests: %v", err)
	}
	return below(t, home, "node-")
}

// below makes a threaded cgroup in another one, which is removed when the test ends.
func below(t T, cgroup, prefix string) string {
	t.Helper()
	dir, err := os.MkdirTemp(cgroup, prefix)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0)
	}
	if err != nil {
		t.Fatalf("make a cgroup: %v", err)
	}
	t.Cleanup(func() { removeSoon(dir) })
	return dir
}

// Below makes the cgroups of a path below one that Cgroup has made, and returns the last. They are removed with that
// one.
func Below(t T, cgroup, path string) string {
	t.Helper()
	for name := range strings.SplitSeq(path, "/") {
		cgroup = filepath.Join(cgroup, name)
		err := os.Mkdir(cgroup, 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(cgroup, "cgroup.type"), []byte("threaded"), 0)
		}
		if err != nil {
			t.Fatalf("make a cgroup: %v", err)
		}
	}
	return cgroup
}

// removeSoon removes a cgroup, and those below, when their threads have ended; the next test process removes it
// otherwise.
func removeSoon(dir string) {
	for range 100 {
		if err := removeTree(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Inside starts a thread in a cgroup and in a network namespace, which ends with the test. It returns a function that
// runs others on it: the sockets that they open belong there.
func Inside(t T, cgroup string, netns int) func(func() error) error {
	t.Helper()
	calls, started, ended := make(chan func()), make(chan error), make(chan struct{})
	onThread(func() {
		defer close(ended)
		err := os.WriteFile(filepath.Join(cgroup, "cgroup.threads"), []byte("0"), 0)
		if err == nil {
			err = unix.Setns(netns, unix.CLONE_NEWNET)
		}
		if started <- err; err != nil {
			return
		}
		for call := range calls {
			call()
		}
	})
	if err := <-started; err != nil {
		t.Fatalf("enter the cgroup: %v", err)
	}
	t.Cleanup(func() {
		close(calls)
		<-ended
	})
	return func(f func() error) error {
		done := make(chan error, 1)
		calls <- func() { done <- f() }
		return <-done
	}
}

// onThread starts a goroutine on a thread that ends with it: any but the main thread, which would remain in the cgroup.
func onThread(f func()) {
	go func() {
		runtime.LockOSThread() // unlocked on the main thread only
		if unix.Gettid() != os.Getpid() {
			f()
			return
		}
		started := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(started)
			f()
		}()
		<-started
		runtime.UnlockOSThread()
	}()
}

// HasCgroups reports whether this process may make cgroups (v2), as Options.Cgroups asks.
func HasCgroups() bool {
	root, err := cgroupRoot()
	return err == nil && unix.Access(root, unix.W_OK) == nil
}

// removeHome removes the cgroups that a process has made, after its end.
func removeHome(pid int) {
	if root, err := cgroupRoot(); err == nil {
		removeSoon(homeIn(root, pid))
	}
}

func homeIn(root string, pid int) string { return filepath.Join(root, homePrefix+strconv.Itoa(pid)) }

// enterHome moves this process into a cgroup of its own, once. The cgroups below may be threaded then.
func enterHome() (string, error) {
	root, err := cgroupRoot()
	if err != nil {
		return "", err
	}
	home := homeIn(root, os.Getpid())
	switch err := os.Mkdir(home, 0o755); {
	case errors.Is(err, os.ErrExist): // another test enters it
		return home, waitFor(home)
	case err != nil:
		return "", err
	}
	if err := removeStale(root); err != nil {
		return "", err
	}
	return home, os.WriteFile(filepath.Join(home, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

func waitFor(home string) error {
	for range 500 {
		b, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			return err
		}
		if strings.Contains(string(b), "/"+filepath.Base(home)) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("another test has not entered it within 5s")
}

// removeStale removes the leftovers of killed test processes.
func removeStale(root string) error {
	list, err := filepath.Glob(filepath.Join(root, homePrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range list {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), homePrefix))
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = removeTree(dir) // another test process may do the same
		}
	}
	return nil
}

// removeTree removes a cgroup with the cgroups of nodes in it, and the cgroups of pods in these.
func removeTree(dir string) error {
	for _, pattern := range []string{"*/*", "*"} {
		list, err := filepath.Glob(filepath.Join(dir, pattern, "cgroup.procs"))
		if err != nil {
			return err
		}
		for _, file := range list {
			removeSoon(filepath.Dir(file))
		}
	}
	return os.Remove(dir)
}

// cgroupRoot returns the folder where cgroup v2 is mounted.
func cgroupRoot() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read from
	for s := bufio.NewScanner(f); s.Scan(); {
		if words := strings.Fields(s.Text()); strings.Contains(s.Text(), " - cgroup2 ") {
			return words[4], nil
		}
	}
	return "", errors.New("cgroup v2 is not mounted")
}

// BPFFS mounts a bpffs, which is gone when the test ends. The process must be in a mount namespace of its own.
func BPFFS(t T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-bpffs-")
	if err != nil {
		t.Fatalf("make a folder: %v", err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a bpffs: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir)); err != nil {
			t.Logf("unmount the bpffs: %v", err)
		}
	})
	return dir
}

// Pin keeps this thread on the last processor that it may use.
func Pin() error {
	var all, last unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	for i := range len(all) * 64 {
		if all.IsSet(i) {
			last.Zero()
			last.Set(i)
		}
	}
	return unix.SchedSetaffinity(0, &last)
}
