package admin

import (
	"errors"
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/windows"
)

// A protected list has exactly the users that may use the mutex and the pipe.
func TestAccess(t *testing.T) {
	user, err := user()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		scope scope
		who   []string
	}{
		"machine": {machine(), []string{"BA", "SY"}},
		"user":    {user, []string{user.owner.String()}},
	} {
		t.Run(name, func(t *testing.T) { testAccess(t, tt.scope, tt.who) })
	}
}

// acquire takes a lock until the end of the test.
func acquire(t *testing.T, s scope) lock {
	t.Helper()
	l, err := s.acquire()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func testAccess(t *testing.T, s scope, want []string) {
	t.Helper()
	l := acquire(t, s)
	for name, h := range map[string]windows.Handle{"mutex": l.mutex, "pipe": l.next} {
		descriptor, err := windows.GetSecurityInfo(h, windows.SE_KERNEL_OBJECT, windows.DACL_SECURITY_INFORMATION)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text := descriptor.String() // the rights are those that the object has for GA
		entry := regexp.MustCompile(`\(A;;[^;)]+;;;([^)]+)\)`)
		var who []string
		for _, m := range entry.FindAllStringSubmatch(text, -1) {
			who = append(who, m[1])
		}
		if rest := entry.ReplaceAllString(text, ""); !slices.Equal(who, want) || rest != "D:P" {
			t.Errorf("%s: the access list is %q, want %v in a protected one", name, text, want)
		}
	}
}

// Commands do not ask a pipe that another user has made.
func TestThePipeOfAnotherUser(t *testing.T) {
	mine, err := user()
	if err != nil {
		t.Fatal(err)
	}
	acquire(t, mine)
	h, err := mine.open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = windows.CloseHandle(h) }()
	others := mine
	if others.owner, err = windows.CreateWellKnownSid(windows.WinWorldSid); err != nil {
		t.Fatal(err)
	}
	if err := others.checkOwner(h); !errors.Is(err, errForeign) {
		t.Errorf("the owner is accepted: %v", err)
	}
}

// One process holds the lock. When it closes it, the next gets it.
func TestOneHoldsTheMutex(t *testing.T) {
	s := machine()
	if err := s.held(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("before: %v, want ErrNotRunning", err)
	}
	first, err := s.acquire()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.acquire(); !errors.Is(err, errHeld) {
		t.Errorf("a second time: %v, want errHeld", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	acquire(t, s)
}
