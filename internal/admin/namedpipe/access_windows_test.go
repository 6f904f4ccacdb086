package namedpipe

import (
	"errors"
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/windows"
)

// A protected list has exactly the users that may use the mutex and the pipe.
func TestAccess(t *testing.T) {
	user, err := User()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		place Place
		who   []string
	}{
		"machine": {Machine(), []string{"BA", "SY"}},
		"user":    {user, []string{user.owner.String()}},
	} {
		t.Run(name, func(t *testing.T) { testAccess(t, tt.place, tt.who) })
	}
}

func testAccess(t *testing.T, p Place, want []string) {
	t.Helper()
	l, err := p.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	for name, h := range map[string]windows.Handle{"mutex": l.lock, "pipe": l.next} {
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
	mine, err := User()
	if err != nil {
		t.Fatal(err)
	}
	l, err := mine.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	h, err := mine.open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = windows.CloseHandle(h) }()
	others := mine
	if others.owner, err = windows.CreateWellKnownSid(windows.WinWorldSid); err != nil {
		t.Fatal(err)
	}
	if err := others.checkOwner(h); !errors.Is(err, ErrDenied) {
		t.Errorf("the owner is accepted: %v", err)
	}
}
