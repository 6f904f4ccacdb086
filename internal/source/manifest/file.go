package manifest

import (
	"bytes"
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

// How long to wait before a file that cannot be read is read again.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// file is one file and what it says.
type file struct {
	from    rank
	content content
	read    reading // the one content is from, without the data
	doubt   doubt

	wasRead  bool // at least once
	attempts int  // to read it that failed since it was read last

	isStream bool // it is not in Source.files

	busy  bool // a job reads it
	again bool // and something happened to it meanwhile
}

// reading is a file as it was at one moment.
type reading struct {
	info fs.FileInfo // nil: standard input
	sum  hash
	ends bool // not in the middle of a line
}

// doubt is a state of a file that is not believed yet.
type doubt struct {
	sum   hash // zero: the file is not there
	since time.Time
	next  content // what the file says in this state
}

// endsWhole reports whether text ends with a line or a bracket.
func endsWhole(data []byte) bool {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		data, _, _ = toUTF8(data[:2+(len(data)-2)&^1])
	}
	return len(data) == 0 || bytes.ContainsRune([]byte("}]"), rune(data[len(data)-1])) || endsLine(data)
}

// look reads a file again, because something happened to it, and takes over
// what it says now unless that is to be doubted.
func (s *Source) look(from rank, now time.Time) {
	delete(s.doubts, from.path)
	f := s.files[from.path]
	if f == nil {
		f = &file{from: from}
		s.files[from.path] = f
	}
	if f.busy {
		f.again = true
		return
	}
	j := job{file: f, reader: s.reader, last: f.content, doubt: f.doubt}
	if f.wasRead {
		j.sum = f.read.sum
	}
	if s.jobs == nil {
		s.finish(j.do(), now)
		return
	}
	f.busy = true
	s.jobs.start(j)
}

// finish takes over the outcome of a job.
func (s *Source) finish(r result, now time.Time) {
	f := r.file
	if f.isStream {
		s.waiting--
		s.finishStream(r)
		return
	}
	if s.files[f.from.path] != f {
		return // it was removed meanwhile
	}
	f.busy = false
	switch {
	case errors.Is(r.err, fs.ErrNotExist):
		s.missing(f, now)
	case r.err != nil:
		s.unreadable(f, r, now)
	case f.wasRead && r.reading.sum == f.read.sum:
		f.read.info, f.doubt, f.attempts = r.reading.info, doubt{}, 0
		s.count(f.from.path, f.content.problemCount())
		s.report.Set(f.from.path, f.content.report(f.from.path))
	case s.loaded && s.doubted(f, r, now):
	default:
		s.accept(f, r.reading, r.next)
	}
	if f.again && s.files[f.from.path] == f {
		f.again = false
		s.look(f.from, now)
	}
}

// unreadable keeps what a file last said, and has it read again later.
func (s *Source) unreadable(f *file, r result, now time.Time) {
	p := route.Problem{Object: f.from.path, Reason: r.err.Error()}
	if len(f.content.objects) > 0 {
		p.Reason += "; " + isKept
	}
	s.count(f.from.path, f.content.problemCount()+1)
	s.report.Set(f.from.path, append(f.content.report(f.from.path), p))
	f.read.info = r.reading.info // nil: look again at every chance
	s.retry(f, now)
}

// retry has a file read again, later after each attempt that failed.
func (s *Source) retry(f *file, now time.Time) {
	delay := min(firstRetry<<min(f.attempts, 10), lastRetry)
	f.attempts++
	if f.read.info == nil {
		s.doubts[f.from.path] = now.Add(delay)
	}
}

// emptied returns what a file says that was emptied: nothing new. That is how
// most programs begin to write a file.
func emptied(path string, last content) content {
	return lost(route.Problem{
		Object: path, Reason: "the file is empty, which takes nothing away until it is removed or says something",
	}).over(last)
}

// patience says how long to wait before a file is believed.
func patience(f *file, r reading, next content) time.Duration {
	inPlace := f.read.info != nil && os.SameFile(f.read.info, r.info)
	switch {
	case inPlace && len(f.content.objects) > 0 && f.read.ends && !r.ends:
		return longDoubt
	case !r.ends, next.isBroken(), next.drops(f.content):
		return shortDoubt
	}
	return 0
}

// doubted reports whether a file has not stayed as it is for long enough, and
// sees to it that it is read again when it may have.
func (s *Source) doubted(f *file, r result, now time.Time) bool {
	if s.waits(f, r.reading.sum, now, patience(f, r.reading, r.next)) {
		f.doubt.next = r.next
		return true
	}
	return false
}

// waits reports whether a file has not been in a state for as long as patience.
func (s *Source) waits(f *file, sum hash, now time.Time, patience time.Duration) bool {
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
	others := s.objects - len(f.content.objects)
	if most := s.reader.limits.Objects; others+len(next.objects) > most {
		next = lost(route.Problem{Object: f.from.path, Reason: fmt.Sprintf(
			"the file has %d objects and the other files have %d; the limit for all is %d", len(next.objects), others, most)}).over(f.content)
	}
	s.index.replace(f.from, f.content, next)
	delete(s.doubts, f.from.path)
	s.objects = others + len(next.objects)
	f.content, f.read, f.doubt, f.wasRead, f.attempts = next, r, doubt{}, true, 0
	s.latest = time.Now()
	s.count(f.from.path, next.problemCount())
	s.report.Set(f.from.path, next.report(f.from.path))
}

// missing forgets a file that is not there any more. Of a symbolic link that
// leads to nothing it forgets what the file said.
func (s *Source) missing(f *file, now time.Time) {
	if f.wasRead && s.waits(f, hash{}, now, shortDoubt) {
		return
	}
	delete(s.doubts, f.from.path)
	if f.wasRead {
		s.index.replace(f.from, f.content, content{})
		s.objects -= len(f.content.objects)
		s.latest = now
	}
	f.content, f.read, f.doubt, f.wasRead = content{}, reading{}, doubt{}, false
	s.count(f.from.path, 0)
	if to, err := os.Readlink(f.from.path); err == nil {
		s.count(f.from.path, 1)
		s.report.Set(f.from.path, []route.Problem{{
			Object: f.from.path, Reason: fmt.Sprintf("a symbolic link to %s, which leads to no file", to),
		}})
		s.retry(f, now)
		return
	}
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
	s.unlisted = 0
	for i, r := range s.roots {
		if r.isStream {
			continue
		}
		paths, err := r.list()
		if err != nil {
			s.unlisted++
		}
		if kept[i] = err != nil && (r.folder || !errors.Is(err, fs.ErrNotExist)); !kept[i] && s.loaded {
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

// problems says that a path cannot be read, and why.
func (r *root) problems(err error) []route.Problem {
	if err == nil {
		return nil
	}
	return []route.Problem{{Object: r.path, Reason: fmt.Sprintf("%v; %s", err, isKept)}}
}

// glance looks at a file if its size, time or identity changed.
func (s *Source) glance(from rank, now time.Time) {
	f := s.files[from.path]
	if f == nil || f.read.info == nil || !f.doubt.since.IsZero() {
		s.look(from, now)
		return
	}
	if info, err := os.Stat(from.path); err != nil || !sameFile(info, f.read.info) {
		s.look(f.from, now)
	}
}

func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Mode().Type() == b.Mode().Type() && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
