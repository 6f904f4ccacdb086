package netns_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

func here(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Error(err)
	}
	return name
}

// What runs there leaves the caller where it is.
func TestDo(t *testing.T) {
	outside := here(t)
	inside := ""
	if err := netns.Do(kerneltest.Namespace(t), func() error { inside = here(t); return nil }); err != nil {
		t.Fatal(err)
	}
	if inside == outside || inside == "" {
		t.Errorf("ran in %s, want another namespace than %s", inside, outside)
	}
	if now := here(t); now != outside {
		t.Errorf("the caller is in %s now, want %s", now, outside)
	}
	if err := netns.Do(0, func() error { inside = here(t); return nil }); err != nil || inside != outside {
		t.Errorf("with none named it ran in %s (%v), want %s", inside, err, outside)
	}
	wrong := errors.New("wrong")
	if err := netns.Do(0, func() error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("error %v, want that of the function", err)
	}
	if err := netns.Do(1<<20, func() error { return nil }); err == nil || !strings.Contains(err.Error(), "enter network namespace") {
		t.Errorf("error %v, want that there is no such namespace", err)
	}
}
