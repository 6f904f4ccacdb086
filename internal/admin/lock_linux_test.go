package admin

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// scopes returns the scopes of a new network namespace, and of a user with a new folder.
func scopes(t *testing.T) map[string]scope {
	t.Helper()
	all := map[string]scope{}
	for name, o := range map[string]Options{
		"network namespace": {NetNS: namespace(t)}, "user": userOptions(t, t.TempDir()),
	} {
		s, err := o.scope()
		if err != nil {
			t.Fatal(err)
		}
		all[name] = s
	}
	return all
}

// take takes a lock until the end of the test.
func take(t *testing.T, s scope) lock {
	t.Helper()
	l, err := s.acquire()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// One process holds the lock; when it closes it, the next gets it.
func TestOneHolds(t *testing.T) {
	for name, s := range scopes(t) {
		free := map[string]error{"network namespace": ErrNotRunning, "user": errNoUserDaemon}[name]
		if err := s.held(); !errors.Is(err, free) {
			t.Errorf("%s, before: %v, want %v", name, err, free)
		}
		l := take(t, s)
		if _, err := s.acquire(); !errors.Is(err, errHeld) {
			t.Errorf("%s, a second time: %v, want errHeld", name, err)
		}
		if err := s.held(); err != nil {
			t.Errorf("%s, held: %v", name, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.held(); !errors.Is(err, free) {
			t.Errorf("%s, after: %v, want %v", name, err, free)
		}
		take(t, s)
	}
	take(t, scopes(t)["network namespace"]) // another namespace has another lock
}

// A lock with two files is held until both are closed.
func TestTheLockPassesWithAFile(t *testing.T) {
	for name, s := range scopes(t) {
		first := take(t, s)
		file, err := first.duplicate()
		if err != nil {
			t.Fatal(err)
		}
		second, err := s.adopt(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []lock{first, second} {
			if _, err := s.acquire(); !errors.Is(err, errHeld) {
				t.Errorf("%s, while a file is open: %v, want errHeld", name, err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		take(t, s)
	}
}

// If many try at the same time, exactly one holds the lock.
func TestManyAcquireAtTheSameTime(t *testing.T) {
	s := scopes(t)["network namespace"]
	var all sync.WaitGroup
	var mu sync.Mutex
	results := map[error]int{}
	for range 32 {
		all.Go(func() {
			l, err := s.acquire()
			mu.Lock()
			defer mu.Unlock()
			results[err]++
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
		})
	}
	all.Wait()
	if results[nil] != 1 || results[errHeld] != 31 {
		t.Errorf("results %v, want one holder and 31 times %v", results, errHeld)
	}
}

// A user's process that is killed holds the lock no longer. (TestKillReleasesTheLock has that of a network namespace.)
func TestAKilledHolder(t *testing.T) {
	o := userOptions(t, t.TempDir())
	s, err := o.scope()
	if err != nil {
		t.Fatal(err)
	}
	child, said := kerneltest.Child(t, namespace(t), "hold", nil)
	if said != "<nil>" {
		t.Fatalf("the child says %q", said)
	}
	if err := s.held(); err != nil {
		t.Errorf("the child holds the lock: %v", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	take(t, s)
}

// Root of another user namespace has no more rights than its user outside.
func TestRootOfAnotherUserNamespaceIsLockedOut(t *testing.T) {
	attr := kerneltest.AsUnprivileged(t)
	attr.Cloneflags = syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: kerneltest.Unprivileged, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: kerneltest.Unprivileged, Size: 1}}
	attr.Credential = &syscall.Credential{}
	if _, said := kerneltest.Child(t, namespace(t), "listen", attr); said != ErrPrivilege.Error() {
		t.Errorf("Listen: %s, want %q", said, ErrPrivilege)
	}
}

func TestAMissingSubsystemIsUnsupported(t *testing.T) {
	const none = 0xff // no subsystem has this number
	if _, err := bindGroup(namespace(t), none); !errors.Is(err, ErrUnsupported) {
		t.Errorf("bind to a subsystem that does not exist: %v, want ErrUnsupported", err)
	}
}

func TestTheSocketOfTheHolder(t *testing.T) {
	ns := namespace(t)
	file, err := bindGroup(ns, unix.NFNL_SUBSYS_ULOG)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	stat, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	want := stat.Sys().(*syscall.Stat_t).Ino
	if got, err := holderSocket(ns); err != nil || got != want {
		t.Errorf("the socket of the holder is %d, %v, want %d", got, err, want)
	}
	s, err := Options{NetNS: ns}.scope()
	if err != nil {
		t.Fatal(err)
	}
	if got := s.pid(Identity{}); got != os.Getpid() {
		t.Errorf("the PID of the holder is %d, want %d", got, os.Getpid())
	}
}
