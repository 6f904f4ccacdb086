package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/textfile"
)

// isInherited reports whether a path leads to a pipe that this process has from
// its parent, as with "-f <(program)" in a shell. Other pipes are not read.
func isInherited(path string) bool {
	if path != "/dev/stdin" && !slices.Contains([]string{"/dev/fd", "/proc/self/fd"}, filepath.Dir(path)) {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeNamedPipe != 0
}

// stream returns the file of a stream.
func (s *Source) stream(i int) *file {
	name := s.roots[i].path
	if name == stdin {
		name = "stdin"
	}
	return &file{from: rank{i, name}}
}

// readStream reads a stream to its end.
func (s *Source) readStream(f *file) result {
	r := result{file: f}
	data, err := s.streamData(s.roots[f.from.root].path)
	if err != nil {
		r.err = fmt.Errorf("read manifests from %s: %w", f.from.path, err)
		return r
	}
	r.next = s.reader.parse(f.from.path, data)
	return r
}

func (s *Source) streamData(path string) ([]byte, error) {
	limit := s.reader.limits.FileBytes
	if path == stdin {
		if s.stdin == nil {
			return nil, errors.New("there is no standard input")
		}
		return textfile.ReadLimited(s.stdin, limit, 0)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return textfile.ReadLimited(io.Reader(f), limit, 0)
}

// loadStream reads a stream and takes over its content.
func (s *Source) loadStream(i int) error {
	r := s.readStream(s.stream(i))
	if r.err != nil {
		return r.err
	}
	s.finishStream(r)
	return nil
}

// startStreams starts a goroutine for each stream. It does not wait for them, as a
// stream may never end.
func (s *Source) startStreams() {
	for i, r := range s.roots {
		if !r.isStream {
			continue
		}
		s.waiting++
		f := s.stream(i)
		f.isStream = true
		go func() { s.jobs.deliver(s.readStream(f)) }()
	}
}

// finishStream takes over the content of a stream; none if it cannot be read.
func (s *Source) finishStream(r result) {
	s.streams++
	if r.err != nil {
		r.next = lost(route.Problem{Object: r.file.from.path, Reason: r.err.Error()})
	}
	s.accept(r.file, r.reading, r.next)
}
