package netlock

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) {
	switch kerneltest.Role() {
	case "hold":
		l, err := Acquire(Options{})
		fmt.Println(err)
		time.Sleep(time.Hour)
		runtime.KeepAlive(l)
	case "acquire":
		_, err := Acquire(Options{})
		fmt.Println(err)
	default:
		os.Exit(kerneltest.Main(m))
	}
}

// acquire takes the lock until the end of the test.
func acquire(t *testing.T, o Options) *Lock {
	t.Helper()
	l, err := Acquire(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestOneHolderInEachNamespace(t *testing.T) {
	one, other := Options{NetNS: kerneltest.Namespace(t)}, Options{NetNS: kerneltest.Namespace(t)}
	first := acquire(t, one)
	acquire(t, other)
	if _, err := Acquire(one); !errors.Is(err, ErrHeld) {
		t.Errorf("acquire twice: %v, want ErrHeld", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	acquire(t, one)
}

// If many try at the same time, exactly one holds the lock.
func TestManyAcquireAtTheSameTime(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	var all sync.WaitGroup
	var mu sync.Mutex
	results, locks := map[string]int{}, []*Lock{}
	for range 32 {
		all.Go(func() {
			l, err := Acquire(o)
			mu.Lock()
			defer mu.Unlock()
			locks = append(locks, l) // otherwise the garbage collector releases it
			if errors.Is(err, ErrHeld) {
				err = ErrHeld
			}
			results[fmt.Sprint(err)]++
		})
	}
	all.Wait()
	if results["<nil>"] != 1 || results[ErrHeld.Error()] != 31 {
		t.Errorf("results %v, want one holder and 31 times %q", results, ErrHeld)
	}
	for _, l := range locks {
		if l != nil {
			_ = l.Close()
		}
	}
}

// A lock with two files is held until both are closed.
func TestTheLockPassesWithAFile(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	first := acquire(t, o)
	file, err := first.File()
	if err != nil {
		t.Fatal(err)
	}
	second := Adopt(file)
	for _, l := range []*Lock{first, second} {
		if _, err := Acquire(o); !errors.Is(err, ErrHeld) {
			t.Errorf("acquire while a file is open: %v, want ErrHeld", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	acquire(t, o)
}

func TestKillReleases(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	for range 3 {
		holder, output := kerneltest.Child(t, o.NetNS, "hold", nil)
		if output != "<nil>" {
			t.Fatal(output)
		}
		if _, err := Acquire(o); !errors.Is(err, ErrHeld) {
			t.Fatalf("acquire while a process holds the lock: %v, want ErrHeld", err)
		}
		if err := holder.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = holder.Wait() // killed
	}
	acquire(t, o)
}

// A process without privileges cannot take the lock, whether it is free or held.
func TestAnotherUserCannotTakeTheLock(t *testing.T) {
	attr := kerneltest.AsUnprivileged(t)
	o := Options{NetNS: kerneltest.Namespace(t)}
	for _, state := range []string{"free", "held"} {
		if _, output := kerneltest.Child(t, o.NetNS, "acquire", attr); !strings.Contains(output, ErrPrivilege.Error()) {
			t.Errorf("acquire a lock that is %s: %s, want %q", state, output, ErrPrivilege)
		}
		if state == "free" {
			acquire(t, o)
		}
	}
}

// Root of another user namespace has no more rights than its user outside.
func TestRootOfAnotherUserNamespaceIsLockedOut(t *testing.T) {
	attr := kerneltest.AsUnprivileged(t)
	attr.Credential = nil
	attr.Cloneflags = syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: kerneltest.Unprivileged, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: kerneltest.Unprivileged, Size: 1}}
	attr.Credential = &syscall.Credential{}
	o := Options{NetNS: kerneltest.Namespace(t)}
	if _, output := kerneltest.Child(t, o.NetNS, "acquire", attr); !strings.Contains(output, ErrPrivilege.Error()) {
		t.Errorf("acquire: %s, want %q", output, ErrPrivilege)
	}
}

// NFQUEUE provides the lock if the kernel has no NFLOG. A lock that is held in this way is
// also held for processes that find NFLOG later.
func TestBothMechanisms(t *testing.T) {
	for _, m := range mechanisms() {
		o := Options{NetNS: kerneltest.Namespace(t)}
		var fd int
		kerneltest.Do(t, o.NetNS, func() (err error) {
			if fd, err = open(); err != nil {
				return err
			}
			return m.acquire(fd)
		})
		if _, err := Acquire(o); !errors.Is(err, ErrHeld) {
			t.Errorf("%s: %v, want ErrHeld", m.name, err)
		}
		if _, err := Socket(o); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		_ = unix.Close(fd)
		acquire(t, o)
	}
}

func TestAMissingSubsystemIsUnsupported(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	var err error
	kerneltest.Do(t, o.NetNS, func() error {
		fd, openErr := open()
		if openErr != nil {
			return openErr
		}
		defer func() { _ = unix.Close(fd) }()
		const none = 0xff // no subsystem has this number
		m := mechanisms()[0]
		m.kind = none<<8 | 1
		err = m.acquire(fd)
		return nil
	})
	if !errors.Is(err, ErrUnsupported) {
		t.Errorf("bind to a subsystem that does not exist: %v, want ErrUnsupported", err)
	}
}

func TestTheSocketOfTheHolder(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	if _, err := Socket(o); !errors.Is(err, ErrFree) {
		t.Errorf("without a holder: %v, want ErrFree", err)
	}
	l := acquire(t, o)
	stat, err := l.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	want := stat.Sys().(*syscall.Stat_t).Ino
	if got, err := Socket(o); err != nil || got != want {
		t.Errorf("Socket = %d, %v, want %d", got, err, want)
	}
}
