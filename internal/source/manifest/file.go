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

// How long a file must stay unchanged before its content is used, if it looks
// as if a program is still writing it.
const (
	shortSettle = 25 * time.Millisecond // it is broken, or objects are gone from it
	longSettle  = 2 * time.Second       // it ends in the middle of a line, and did not before
)

// The retry delays for a file that cannot be read.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// file is one file and its content.
type file struct {
	from      rank
	content   content
	read      reading // that content comes from
	unsettled unsettled

	wasRead  bool // at least once
	attempts int  // that failed since it was read last
	problems int

	busy  bool // a job reads it
	again bool // it changed while the job was reading it
}

// add adds a file that is not read yet.
func (s *Source) add(from rank) *file {
	f := &file{from: from}
	s.files[from.path] = f
	return f
}

// isStream reports whether a file is read once only.
func (s *Source) isStream(f *file) bool { return s.roots[f.from.root].isStream }

// reading is the state of a file when it was read.
type reading struct {
	info fs.FileInfo // nil: standard input
	sum  hash
	ends bool // not in the middle of a line
}

// unsettled is a state of a file that is not used yet.
type unsettled struct {
	sum   hash // zero: the file is not there
	since time.Time
	next  content // of the file in this state
}

// endsWhole reports whether text ends with a line or a bracket.
func endsWhole(data []byte) bool {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		data, _, _ = toUTF8(data[:len(data)&^1])
	}
	return len(data) == 0 || bytes.ContainsRune([]byte("}]"), rune(data[len(data)-1])) || endsLine(data)
}

// reread reads a file again and uses its content, unless the file may still
// be changing.
func (s *Source) reread(from rank, now time.Time) {
	delete(s.rereads, from.path)
	f := s.files[from.path]
	if f == nil {
		f = s.add(from)
	}
	if f.busy {
		f.again = true
		return
	}
	if s.jobs == nil {
		s.finish(s.job(f).do(), now)
		return
	}
	f.busy = true
	s.jobs.start(s.job(f))
}

// finish uses the outcome of a job.
func (s *Source) finish(r result, now time.Time) {
	f := r.file
	if s.files[f.from.path] != f {
		return // it was removed meanwhile
	}
	f.busy = false
	switch {
	case s.isStream(f):
		if r.err != nil {
			r.next = unread(route.Problem{Object: f.from.path, Reason: r.err.Error()})
		}
		s.accept(f, r.reading, r.next)
	case errors.Is(r.err, fs.ErrNotExist):
		s.missing(f, now)
	case r.err != nil:
		s.unreadable(f, r, now)
	case f.wasRead && r.reading.sum == f.read.sum:
		f.read.info, f.unsettled, f.attempts = r.reading.info, unsettled{}, 0
		s.setProblems(f)
	case s.loaded && s.mustWait(f, r.reading.sum, now, settleTime(f, r.reading, r.next)):
		f.unsettled.next = r.next
	default:
		s.accept(f, r.reading, r.next)
	}
	if f.again && s.files[f.from.path] == f {
		f.again = false
		s.reread(f.from, now)
	}
}

// setProblems reports the problems of the content of a file, and others.
func (s *Source) setProblems(f *file, others ...route.Problem) {
	f.problems = f.content.problemCount() + len(others)
	s.report.Set(f.from.path, append(f.content.report(f.from.path), others...))
}

// unreadable keeps the last content of a file and schedules a retry.
func (s *Source) unreadable(f *file, r result, now time.Time) {
	p := route.Problem{Object: f.from.path, Reason: r.err.Error()}
	if len(f.content.objects) > 0 {
		p.Reason += "; " + isKept
	}
	s.setProblems(f, p)
	f.read.info = r.reading.info // nil: reread it at every refresh
	s.retry(f, now)
}

// retry schedules the next attempt to read a file, with back-off.
func (s *Source) retry(f *file, now time.Time) {
	delay := min(firstRetry<<min(f.attempts, 10), lastRetry)
	f.attempts++
	if f.read.info == nil {
		s.rereads[f.from.path] = now.Add(delay)
	}
}

// emptied returns the content of a file that was truncated: its last one, because
// most programs truncate a file before they write it.
func emptied(path string, last content) content {
	return unread(route.Problem{
		Object: path, Reason: "the file is empty, so its objects stay until it is removed or written",
	}).over(last)
}

// settleTime returns how long a file must stay unchanged before it is used.
func settleTime(f *file, r reading, next content) time.Duration {
	inPlace := f.read.info != nil && os.SameFile(f.read.info, r.info)
	switch {
	case inPlace && len(f.content.objects) > 0 && f.read.ends && !r.ends:
		return longSettle
	case !r.ends, next.isBroken(), next.drops(f.content):
		return shortSettle
	}
	return 0
}

// mustWait reports whether a file has been in a state for less than settle, and
// then schedules the next attempt.
func (s *Source) mustWait(f *file, sum hash, now time.Time, settle time.Duration) bool {
	if f.unsettled.since.IsZero() || f.unsettled.sum != sum {
		f.unsettled = unsettled{sum: sum, since: now}
	}
	due := f.unsettled.since.Add(settle)
	if now.Before(due) {
		s.rereads[f.from.path] = due
		return true
	}
	return false
}

// accept makes new content the content of a file.
func (s *Source) accept(f *file, r reading, next content) {
	others := s.objects - len(f.content.objects)
	if most := s.reader.limits.Objects; others+len(next.objects) > most {
		next = unread(route.Problem{Object: f.from.path, Reason: fmt.Sprintf(
			"the file has %d objects and the other files have %d; the limit for all is %d", len(next.objects), others, most)}).over(f.content)
	}
	s.index.replace(f.from, f.content, next)
	delete(s.rereads, f.from.path)
	s.objects = others + len(next.objects)
	f.content, f.read, f.unsettled, f.wasRead, f.attempts = next, r, unsettled{}, true, 0
	s.latest = time.Now()
	s.setProblems(f)
}

// missing forgets a file that no longer exists. Of a symbolic link without a target
// it forgets the content only.
func (s *Source) missing(f *file, now time.Time) {
	if f.wasRead && s.mustWait(f, hash{}, now, shortSettle) {
		return
	}
	delete(s.rereads, f.from.path)
	if f.wasRead {
		s.index.replace(f.from, f.content, content{})
		s.objects -= len(f.content.objects)
		s.latest = now
	}
	f.content, f.read, f.unsettled, f.wasRead = content{}, reading{}, unsettled{}, false
	if to, err := os.Readlink(f.from.path); err == nil {
		s.setProblems(f, route.Problem{
			Object: f.from.path, Reason: fmt.Sprintf("a symbolic link to %s, which leads to no file", to),
		})
		s.retry(f, now)
		return
	}
	s.report.Set(f.from.path, nil)
	delete(s.files, f.from.path)
}

// gone reports whether a file that was read no longer exists.
func (s *Source) gone(path string) bool {
	if f := s.files[path]; f == nil || s.isStream(f) {
		return false
	}
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// refresh rereads the files of all roots that changed since they were read.
func (s *Source) refresh(now time.Time) {
	listed := map[string]bool{}
	kept := map[int]bool{}
	s.unlisted = 0
	for i, r := range s.roots {
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
				s.rereadIfChanged(rank{i, p}, now)
			}
		}
	}
	for path, f := range s.files {
		if !listed[path] && !kept[f.from.root] {
			s.missing(f, now)
		}
	}
}

// problems reports the error of a path that cannot be read.
func (r *root) problems(err error) []route.Problem {
	if err == nil {
		return nil
	}
	return []route.Problem{{Object: r.path, Reason: fmt.Sprintf("%v; %s", err, isKept)}}
}

// rereadIfChanged rereads a file if its size, time or identity changed.
func (s *Source) rereadIfChanged(from rank, now time.Time) {
	f := s.files[from.path]
	if f != nil && s.isStream(f) {
		return
	}
	if f == nil || f.read.info == nil || !f.unsettled.since.IsZero() {
		s.reread(from, now)
		return
	}
	if info, err := os.Stat(from.path); err != nil || !sameFile(info, f.read.info) {
		s.reread(f.from, now)
	}
}

func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Mode().Type() == b.Mode().Type() && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
