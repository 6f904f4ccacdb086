package relay

import (
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/relay/stream"
)

// files opens the file descriptors of connections and flows, for all workers. It keeps one in reserve: if
// the process may have no others, a client is accepted with that one, and reset.
type files struct {
	mu      sync.RWMutex // locked for writing while reserve changes
	reserve int          // -1: the rest of the program has taken it
}

// open calls a function that opens file descriptors, unless that could take the one in reserve: then it
// returns EMFILE.
func (f *files) open(do func() error) error {
	f.mu.RLock()
	if f.reserve >= 0 {
		defer f.mu.RUnlock()
		return do()
	}
	f.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.keep() {
		return unix.EMFILE
	}
	return do()
}

func (f *files) accept(listener int) (fd int, client netip.AddrPort, err error) {
	err = f.open(func() (err error) {
		fd, client, err = stream.Accept(listener)
		return err
	})
	return fd, client, err
}

// connect begins to connect to a backend.
func (f *files) connect(to netip.AddrPort) (fd int, err error) {
	err = f.open(func() (err error) {
		fd, err = stream.Connect(to)
		return err
	})
	return fd, err
}

// connectFrom begins to connect to a backend from a local address and port.
func (f *files) connectFrom(from, to netip.AddrPort) (fd int, err error) {
	err = f.open(func() (err error) {
		fd, err = stream.ConnectFrom(from, to)
		return err
	})
	return fd, err
}

// reset resets the next client of a listening socket. It returns EAGAIN if none waits, and EMFILE if there
// is no file descriptor for it.
func (f *files) reset(listener int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.keep() {
		return unix.EMFILE
	}
	stream.Close(f.reserve)
	f.reserve = -1
	fd, _, err := stream.Accept(listener)
	if err == nil {
		reset(fd)
	}
	f.keep()
	return err
}

// keep opens the file descriptor in reserve, if it is not open. It returns false if that is not possible.
func (f *files) keep() bool {
	if f.reserve >= 0 {
		return true
	}
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	f.reserve = fd
	return true
}

// close closes the file descriptor in reserve.
func (f *files) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reserve >= 0 {
		stream.Close(f.reserve)
		f.reserve = -1
	}
}
