package manifest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
)

// How long a file must have stayed as it is before it is believed, when it
// looks as if somebody were still writing it.
const (
	shortDoubt = 25 * time.Millisecond // it is broken, or objects are gone from it
	longDoubt  = 2 * time.Second       // it ends in the middle of a line, and did not before
)

// file is one file and what it says.
type file struct {
	from    rank
	content content
	read    reading // the one content is from, without the data
	doubt   doubt
}

// reading is a file as it was at one moment.
type reading struct {
	info fs.FileInfo // nil: standard input
	data []byte
	sum  hash
	ends bool // not in the middle of a line
}

// doubt is a state of a file that is not believed yet.
type doubt struct {
	sum   hash // zero: the file is not there
	since time.Time
}

func readFile(path string) (reading, error) {
	info, err := os.Stat(path)
	if err != nil {
		return reading{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return reading{}, err
	}
	return reading{info: info, data: data, sum: sha256.Sum256(data), ends: endsWhole(data)}, nil
}

// endsWhole reports whether text ends with a line or a bracket.
func endsWhole(data []byte) bool {
	return len(data) == 0 || bytes.ContainsRune([]byte("\n}]"), rune(data[len(data)-1]))
}

// look reads a file again, because something happened to it, and takes over
// what it says now unless that is to be doubted.
func (s *Source) look(from rank, now time.Time) {
	f := s.files[from.path]
	delete(s.doubts, from.path)
	r, err := readFile(from.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && f == nil && !r.info.Mode().IsRegular() {
		s.missing(f, now)
		return
	}
	if f == nil {
		f = &file{from: from}
		s.files[from.path] = f
	}
	if err != nil {
		p := route.Problem{Object: from.path, Reason: err.Error()}
		if len(f.content.objects) > 0 {
			p.Reason += "; " + isKept
		}
		s.report.Set(from.path, append(f.content.all(), p))
		f.read.info = nil // look again at every chance
		return
	}
	if r.sum == f.read.sum {
		f.read.info, f.doubt = r.info, doubt{}
		s.report.Set(from.path, f.content.all())
		return
	}
	next := s.next(f, r)
	if s.doubted(f, r.sum, now, patience(f, r, next)) {
		return
	}
	s.accept(f, r, next)
}

// next returns what a file says now. One that was emptied says nothing new:
// that is how most programs begin to write a file.
func (s *Source) next(f *file, r reading) content {
	if len(bytes.TrimSpace(r.data)) == 0 && len(f.content.objects) > 0 {
		return lost(route.Problem{
			Object: f.from.path, Reason: "the file is empty, which takes nothing away until it is removed or says something",
		}).over(f.content)
	}
	return s.reader.parseAgain(f.from.path, r.data, f.content).over(f.content)
}

// patience says how long to wait before a file is believed.
func patience(f *file, r reading, next content) time.Duration {
	inPlace := f.read.info != nil && os.SameFile(f.read.info, r.info)
	switch {
	case inPlace && len(f.content.objects) > 0 && f.read.ends && !r.ends:
		return longDoubt
	case !r.ends, len(next.failures) > 0, next.drops(f.content):
		return shortDoubt
	}
	return 0
}

// doubted reports whether a file has not stayed as it is for long enough, and
// sees to it that it is looked at again when it may have.
func (s *Source) doubted(f *file, sum hash, now time.Time, patience time.Duration) bool {
	if f.doubt.since.IsZero() || f.doubt.sum != sum {
		f.doubt = doubt{sum: sum, since: now}
	}
	due := f.doubt.since.Add(patience)
	if now.Before(due) {
		s.doubts[f.from.path] = due
		return true
	}
	return false
}

// accept takes over what a file says.
func (s *Source) accept(f *file, r reading, next content) {
	s.index.replace(f.from, f.content, next)
	delete(s.doubts, f.from.path)
	r.data = nil
	f.content, f.read, f.doubt = next, r, doubt{}
	s.latest = time.Now()
	s.report.Set(f.from.path, next.all())
}

// missing forgets a file that is not there any more.
func (s *Source) missing(f *file, now time.Time) {
	if f == nil || s.doubted(f, hash{}, now, shortDoubt) {
		return
	}
	delete(s.doubts, f.from.path)
	s.index.replace(f.from, f.content, content{})
	s.latest = now
	s.report.Set(f.from.path, nil)
	delete(s.files, f.from.path)
}

// gone reports whether a file that was read is not there now.
func (s *Source) gone(path string) bool {
	if s.files[path] == nil {
		return false // standard input
	}
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// refresh looks at whatever file of any root is not as it was last read.
func (s *Source) refresh(now time.Time) {
	listed := map[string]bool{}
	kept := map[int]bool{}
	for i, r := range s.roots {
		if r.path == stdin {
			continue
		}
		paths, err := r.list()
		if kept[i] = err != nil && (r.folder || !errors.Is(err, fs.ErrNotExist)); !kept[i] {
			err = nil
		}
		s.report.Set("path "+r.path, r.problems(err))
		for _, p := range paths {
			if !listed[p] {
				listed[p] = true
				s.glance(rank{i, p}, now)
			}
		}
	}
	for path, f := range s.files {
		if !listed[path] && !kept[f.from.root] {
			s.missing(f, now)
		}
	}
}

// problems says that what a path last said is kept, and why.
func (r *root) problems(err error) []route.Problem {
	if err == nil {
		return nil
	}
	return []route.Problem{{Object: r.path, Reason: fmt.Sprintf("%v; %s", err, isKept)}}
}

// glance looks at a file if its size, time or identity changed.
func (s *Source) glance(from rank, now time.Time) {
	f := s.files[from.path]
	if f == nil || f.read.info == nil {
		s.look(from, now)
		return
	}
	info, err := os.Stat(from.path)
	if err == nil && (!info.Mode().IsRegular() || sameFile(info, f.read.info)) && f.doubt.since.IsZero() {
		return
	}
	s.look(f.from, now)
}

func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
