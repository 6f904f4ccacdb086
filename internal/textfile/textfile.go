// Package textfile reads files that other programs may replace by a FIFO or a device at any time.
//
// It opens regular files only, so that a FIFO cannot block the reader and a
// device cannot be changed by it, and it reads a limited number of bytes.
package textfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/text"
)

// readTimeout bounds the reading of a file of a kernel file system that has
// the type of a regular file but waits for events, such as /proc/kmsg.
const readTimeout = time.Second

// ErrNotRegular means that a path leads to something other than a regular file.
var ErrNotRegular = errors.New("only regular files are read")

func notRegular(path string, mode fs.FileMode) error {
	return fmt.Errorf("%s is %s; %w", path, kindOf(mode), ErrNotRegular)
}

func tooLarge(name, size string, limit int64) error {
	return fmt.Errorf("%s is too large: it has %s; the limit is %s", name, size, text.Bytes(limit))
}

// File is an open regular file.
type File struct {
	// Info is the state of the file when it was opened.
	Info fs.FileInfo

	file *os.File
	path string
}

// Open opens a regular file. It follows symbolic links and never blocks. The caller closes the File.
func Open(path string) (*File, error) {
	info, err := os.Stat(path) // opening a device may have side effects
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		e.Op = "open"
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, notRegular(path, info.Mode())
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err = f.Stat() // the path may lead to another file by now
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular(path, info.Mode())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &File{Info: info, file: f, path: path}, nil
}

// Read returns the content of the file, or an error if it has more than limit bytes. A
// file that grows meanwhile is read up to the limit only.
func (f *File) Read(limit int64) ([]byte, error) {
	if f.Info.Size() > limit {
		return nil, tooLarge(f.path, text.Bytes(f.Info.Size()), limit)
	}
	_ = f.file.SetReadDeadline(time.Now().Add(readTimeout)) // most regular files need no deadline and have none
	return ReadLimited(f.path, f.file, Size{f.Info.Size(), limit})
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// Read opens a regular file, returns its content and closes it.
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Read(limit)
}

// Size is the expected number of bytes, 0 if it is not known, and the largest.
type Size struct{ Expected, Limit int64 }

// ReadLimited reads r until its end, or returns an error with the name of r if it has more
// than size.Limit bytes. Its buffers have at most twice the limit together.
func ReadLimited(name string, r io.Reader, size Size) ([]byte, error) {
	limit := size.Limit
	b := make([]byte, 0, min(max(size.Expected, leastRead), limit)+1) // one more, to notice the end
	for {
		if len(b) == cap(b) {
			more := make([]byte, len(b), min(2*int64(cap(b)), limit+1))
			copy(more, b)
			b = more
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case int64(len(b)) > limit:
			return nil, tooLarge(name, "more than the limit", limit)
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil:
			return nil, err
		}
	}
}

// leastRead is the size of the first buffer for files that do not say how large they are.
const leastRead = 512

// kindOf names the type of a file, with its article.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe (FIFO)"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	default:
		return "not a regular file"
	}
}
