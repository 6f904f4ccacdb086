package socket

import "golang.org/x/sys/unix"

// Pipe is a pipe, with one end to read and one to write.
type Pipe struct{ Read, Write int }

// pipeSize is the size of a pipe, if the kernel grants it: a user without privileges may have
// /proc/sys/fs/pipe-user-pages-soft pages in all pipes.
const pipeSize = 1 << 20

// NewPipe opens a non-blocking pipe.
func NewPipe() (Pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return Pipe{}, err
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize) // else it has 64 KiB
	return Pipe{Read: fds[0], Write: fds[1]}, nil
}

// Close closes both ends.
func (p Pipe) Close() {
	Close(p.Read)
	Close(p.Write)
}
