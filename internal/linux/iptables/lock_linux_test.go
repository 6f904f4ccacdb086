package iptables

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestLockHolder(t *testing.T) {
	path := t.TempDir() + "/lock"
	if got := lockHolder(path); got != "another process" {
		t.Errorf("a file that does not exist: %s", got)
	}
	release := holdLock(t, path)
	if got := lockHolder(path); !strings.HasSuffix(got, fmt.Sprintf(" (process %d)", os.Getpid())) {
		t.Errorf("held by %s", got)
	}
	release()
	if got := lockHolder(path); got != "another process" {
		t.Errorf("after its release: %s", got)
	}
}

func TestLocker(t *testing.T) {
	const locks = `1: POSIX  ADVISORY  WRITE 10 00:1a:7 0 EOF
2: FLOCK  ADVISORY  WRITE 11 00:1a:8 0 EOF
3: FLOCK  ADVISORY  WRITE 0 00:1a:7 0 EOF
4: FLOCK  ADVISORY  WRITE 12 00:1a:7 0 EOF
4: -> FLOCK  ADVISORY  WRITE 13 00:1a:7 0 EOF
broken
`
	for file, want := range map[string]int{"00:1a:7": 12, "00:1a:8": 11, "00:1a:9": 0} {
		if got := locker(locks, file); got != want {
			t.Errorf("%s is locked by %d, want %d", file, got, want)
		}
	}
}
