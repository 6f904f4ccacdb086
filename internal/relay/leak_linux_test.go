package relay

import (
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// openFiles returns how many file descriptors the process has.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// An Engine that cannot be made, one that does not run, and a socket that cannot be adopted leave no file
// descriptors open.
func TestNothingLeaks(t *testing.T) {
	ns := kerneltest.Namespace(t)
	if _, err := os.Open("/dev/null/none"); err == nil { // the poller of package os is open from now on
		t.Fatal("opened")
	}
	e, err := New(Options{NetNS: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Discard(); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	for name, leave := range map[string]func(t *testing.T){
		"half": func(t *testing.T) {
			lowFiles(t, 2)
			if _, err := New(Options{NetNS: ns}); err == nil {
				t.Error("an engine without file descriptors")
			}
		},
		"never run": func(t *testing.T) {
			e, err := New(Options{NetNS: ns})
			if err != nil {
				t.Fatal(err)
			}
			for _, protocol := range []Protocol{TCP, UDP} {
				if _, err := e.Listen(Spec{Protocol: protocol, Addr: loopback, Balancer: NewBalancer(one())}); err != nil {
					t.Error(err)
				}
			}
			if err := e.Discard(); err != nil {
				t.Error(err)
			}
		},
		"not adopted": func(t *testing.T) {
			e, err := New(Options{NetNS: ns})
			if err != nil {
				t.Fatal(err)
			}
			for _, protocol := range []Protocol{TCP, UDP} {
				file, err := os.Open("/dev/null")
				if err != nil {
					t.Fatal(err)
				}
				spec := Spec{Protocol: protocol, Addr: loopback, Balancer: NewBalancer(one()), Inherited: file}
				if _, err := e.Listen(spec); err == nil {
					t.Error("adopted a file")
				}
			}
			if err := e.Discard(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, leave)
		if after := openFiles(t); after > before {
			t.Errorf("%s: %d file descriptors, before %d", name, after, before)
		}
	}
}
