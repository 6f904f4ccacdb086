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

// How long a file must stay unchanged before it is taken over, if its content looks
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

	isStream bool // it is not in Source.files

	busy  bool // a job reads it
	again bool // it changed while the job was reading it
}

// reading is the state of a file when it was read.
type reading struct {
	info fs.FileInfo // nil: standard input
	sum  hash
	ends bool // not in the middle of a line
}

// unsettled is a state of a file that is not taken over yet.
type unsettled struct {
	sum   hash // zero: the file is not there
	since time.Time
	next  content // of the file in this state
}

// endsWhole reports whether text ends with a line or a bracket.
func endsWhole(data []byte) bool {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		data, _, _ = toUTF8(data[:2+(len(data)-2)&^1])
	}
	return len(data) == 0 || bytes.ContainsRune([]byte("}]"), rune(data[len(data)-1])) || endsLine(data)
}

// reread reads a file again and takes over its content, unless the file may still
// be changing.
func (s *Source) reread(from rank, now time.Time) {
	delete(s.rereads, from.path)
	f := s.files[from.path]
	if f == nil {
		f = &file{from: from}
		s.files[from.path] = f
	}
	if f.busy {
		f.again = true
		return
	}
	j := job{file: f, reader: s.reader, last: f.content, unsettled: f.unsettled}
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
		f.read.info, f.unsettled, f.attempts = r.reading.info, unsettled{}, 0
		s.count(f.from.path, f.content.problemCount())
		s.report.Set(f.from.path, f.content.report(f.from.path))
	case s.loaded && s.settling(f, r, now):
	default:
		s.accept(f, r.reading, r.next)
	}
	if f.again && s.files[f.from.path] == f {
		f.again = false
		s.reread(f.from, now)
	}
}

// unreadable keeps the last content of a file and schedules a retry.
func (s *Source) unreadable(f *file, r result, now time.Time) {
	p := route.Problem{Object: f.from.path, Reason: r.err.Error()}
	if len(f.content.objects) > 0 {
		p.Reason += "; " + isKept
	}
	s.count(f.from.path, f.content.problemCount()+1)
	s.report.Set(f.from.path, append(f.content.report(f.from.path), p))
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
	return lost(route.Problem{
		Object: path, Reason: "the file is empty, so its objects stay until it is removed or written",
	}).over(last)
}

// settleTime returns how long a file must stay unchanged before it is taken over.
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

// settling reports whether a file has not stayed unchanged for long enough, and
// then schedules the next attempt.
func (s *Source) settling(f *file, r result, now time.Time) bool {
	if s.mustWait(f, r.reading.sum, now, settleTime(f, r.reading, r.next)) {
		f.unsettled.next = r.next
		return true
	}
	return false
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

// accept takes over the content of a file.
func (s *Source) accept(f *file, r reading, next content) {
	others := s.objects - len(f.content.objects)
	if most := s.reader.limits.Objects; others+len(next.objects) > most {
		next = lost(route.Problem{Object: f.from.path, Reason: fmt.Sprintf(
			"the file has %d objects and the other files have %d; the limit for all is %d", len(next.objects), others, most)}).over(f.content)
	}
	s.index.replace(f.from, f.content, next)
	delete(s.rereads, f.from.path)
	s.objects = others + len(next.objects)
	f.content, f.read, f.unsettled, f.wasRead, f.attempts = next, r, unsettled{}, true, 0
	s.latest = time.Now()
	s.count(f.from.path, next.problemCount())
	s.report.Set(f.from.path, next.report(f.from.path))
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

// gone reports whether a file that was read no longer exists.
func (s *Source) gone(path string) bool {
	if s.files[path] == nil {
		return false // standard input
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
