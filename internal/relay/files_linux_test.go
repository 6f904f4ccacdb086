package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/relay/stream"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// When the rest of the program has taken the file descriptor in reserve, connections do not take the next
// one that is free.
func TestReserveOfFiles(t *testing.T) {
	_, line := kerneltest.Child(t, kerneltest.Namespace(t), "reserve", nil)
	if line != "as expected" {
		t.Error(line)
	}
}

// reserveRole uses the file descriptors of a process of its own. It prints an error or "as expected".
func reserveRole() error {
	l, err := stream.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		return err
	}
	const limit = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	f := &files{reserve: -1}
	f.keep()
	last := takeFiles()
	steps := []struct {
		what string
		do   func() error
		want error
	}{
		{"accept without files", func() error { _, _, err := f.accept(l); return err }, unix.EMFILE},
		{"reset when no client waits", func() error { return f.reset(l) }, unix.EAGAIN},
		{"the program takes the reserve", func() error {
			err := unix.Close(f.reserve)
			f.reserve = -1
			takeFiles()
			return err
		}, nil},
		{"accept without the reserve", func() error { _, _, err := f.accept(l); return err }, unix.EMFILE},
		{"reset without the reserve", func() error { return f.reset(l) }, unix.EMFILE},
		{"the program closes a file", func() error { return unix.Close(last) }, nil},
		{"accept when one file is free", func() error { _, _, err := f.accept(l); return err }, unix.EMFILE},
		{"reset with the reserve", func() error { return f.reset(l) }, unix.EAGAIN},
	}
	for _, s := range steps {
		if err := s.do(); !errors.Is(err, s.want) {
			fmt.Printf("%s: %v, not %v\n", s.what, err, s.want)
			return nil
		}
	}
	fmt.Println("as expected")
	return nil
}

// takeFiles opens files until there are no file descriptors. It returns the last one.
func takeFiles() (last int) {
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return last
		}
		last = fd
	}
}
