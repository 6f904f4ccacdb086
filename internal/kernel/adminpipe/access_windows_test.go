package adminpipe

import (
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/windows"
)

// Administrators and LocalSystem may use the mutex and the pipe, and nobody else.
func TestAccess(t *testing.T) {
	l, err := Listen()
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
		var who []string
		for _, m := range regexp.MustCompile(`\(A;;[^;)]+;;;(\w+)\)`).FindAllStringSubmatch(text, -1) {
			who = append(who, m[1])
		}
		rest := regexp.MustCompile(`\(A;;[^;)]+;;;(BA|SY)\)`).ReplaceAllString(text, "")
		if !slices.Equal(who, []string{"BA", "SY"}) || rest != "D:P" {
			t.Errorf("%s: the access list is %q, want BA and SY in a protected one", name, text)
		}
	}
}
