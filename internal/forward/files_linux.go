package forward

import (
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/stream"
)

// files opens the file descriptors of connections and flows, for all workers. It keeps one more: if the
// process may have no others, a client is accepted with that one, and reset.
type files struct {
	mu      sync.RWMutex // locked for writing while the kept one is in use, so that no connection takes it
	reserve int          // -1: the rest of the program had taken it
}

// open calls a function that opens file descriptors.
func (f *files) open(do func() error) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return do()
}

// accept accepts a client.
func (f *files) accept(listener int) (fd int, client netip.AddrPort, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return stream.Accept(listener)
}

// connect begins to connect to a backend.
func (f *files) connect(to netip.AddrPort, source netip.Addr) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return stream.Connect(to, source)
}

// reset resets the next client of a listening socket. It returns EAGAIN if none waits, and EMFILE if there
// is no file descriptor for it.
func (f *files) reset(listener int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reserve < 0 {
		f.keep()
	}
	if f.reserve < 0 {
		return unix.EMFILE
	}
	stream.Close(f.reserve)
	fd, _, err := stream.Accept(listener)
	if err == nil {
		stream.SetReset(fd)
		stream.Close(fd)
	}
	f.keep()
	return err
}

// keep opens the file descriptor in reserve.
func (f *files) keep() {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	f.reserve = fd
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
