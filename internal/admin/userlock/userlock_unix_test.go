//go:build unix

package userlock_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin/userlock"
)

// holdVariable has the folder of the lock that a child of the tests holds.
const holdVariable = "SLUICE_TEST_HOLD"

func TestMain(m *testing.M) {
	if folder := os.Getenv(holdVariable); folder != "" {
		_, err := userlock.Acquire(folder)
		fmt.Println("acquired", err)
		time.Sleep(time.Minute) // until it is killed
		return
	}
	os.Exit(m.Run())
}

func acquire(t *testing.T, folder string) *userlock.Lock {
	t.Helper()
	l, err := userlock.Acquire(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// One process holds the lock; when it closes it, the next gets it.
func TestOneHolds(t *testing.T) {
	folder := t.TempDir()
	if _, err := userlock.Holder(folder); !errors.Is(err, userlock.ErrFree) {
		t.Errorf("before: %v, want ErrFree", err)
	}
	l := acquire(t, folder)
	if _, err := userlock.Acquire(folder); !errors.Is(err, userlock.ErrHeld) {
		t.Errorf("a second time: %v, want ErrHeld", err)
	}
	if pid, err := userlock.Holder(folder); pid != os.Getpid() || err != nil {
		t.Errorf("the holder is %d, %v, want %d", pid, err, os.Getpid())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := userlock.Holder(folder); !errors.Is(err, userlock.ErrFree) {
		t.Errorf("after: %v, want ErrFree", err)
	}
	acquire(t, folder)
}

// A lock with two files is held until both are closed.
func TestTheLockPassesWithAFile(t *testing.T) {
	folder := t.TempDir()
	first := acquire(t, folder)
	file, err := first.File()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []*userlock.Lock{first, userlock.Adopt(file)} {
		if _, err := userlock.Acquire(folder); !errors.Is(err, userlock.ErrHeld) {
			t.Errorf("while a file is open: %v, want ErrHeld", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	acquire(t, folder)
}

// A process that is killed holds the lock no longer.
func TestAKilledHolder(t *testing.T) {
	folder := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), holdVariable+"="+folder)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "acquired <nil>" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	if pid, err := userlock.Holder(folder); pid != child.Process.Pid || err != nil {
		t.Errorf("the holder is %d, %v, want %d", pid, err, child.Process.Pid)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	acquire(t, folder)
}
