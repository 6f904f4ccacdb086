package manifest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/textfile"
)

// largeBytes is the size from which on files are read one at a time, apart from
// smaller ones, and documents are converted one at a time.
const largeBytes = 256 << 10

// job is the work of reading a file. It changes nothing, so that any goroutine
// may do it.
type job struct {
	file      *file // not read, except for its path
	stream    *root // the file is read once; nil: it is a regular file
	stdin     io.Reader
	reader    reader
	last      content // the last content of the file
	sum       hash    // of the text of last; zero: there is none
	unsettled unsettled
}

// result is the outcome of a job.
type result struct {
	file    *file
	reading reading
	next    content // not set if the text is the same as last
	err     error
}

// job returns the job of reading a file.
func (s *Source) job(f *file) job {
	j := job{file: f, stdin: s.stdin, reader: s.reader, last: f.content, unsettled: f.unsettled}
	if r := s.roots[f.from.root]; r.isStream {
		j.stream = r
	}
	if f.wasRead {
		j.sum = f.read.sum
	}
	return j
}

// do reads the file.
func (j job) do() result {
	if j.stream != nil {
		return j.readStream()
	}
	f, err := textfile.Open(j.file.from.path)
	if err != nil {
		return j.failed(err)
	}
	defer f.Close()
	return j.read(f)
}

// failed returns the result of a file that cannot be read. The result has the state
// of the file if only a change of the file can help.
func (j job) failed(err error) result {
	r := result{file: j.file, err: err}
	if e, ok := errors.AsType[*textfile.NotRegularError](err); ok {
		r.reading.info = e.Info
	}
	return r
}

// read reads an open file.
func (j job) read(f *textfile.File) result {
	data, err := f.Read(j.reader.limits.FileBytes)
	if err != nil {
		r := j.failed(err)
		if _, ok := errors.AsType[*textfile.TooLargeError](err); ok {
			r.reading.info = f.Info
		}
		return r
	}
	return j.parse(data, f.Info)
}

// readStream reads a stream to its end.
func (j job) readStream() result {
	in, limit := j.stdin, j.reader.limits.FileBytes
	if j.stream.path != stdin {
		f, err := os.OpenFile(j.stream.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return j.failed(err)
		}
		defer f.Close()
		in = f
	}
	if in == nil {
		return j.failed(errors.New("there is no standard input"))
	}
	data, err := textfile.ReadLimited(in, limit, 0)
	if err != nil {
		return j.failed(fmt.Errorf("%s: %w", j.file.from.path, err))
	}
	return j.parse(data, nil)
}

// parse returns the result of a file with this text.
func (j job) parse(data []byte, info fs.FileInfo) result {
	path := j.file.from.path
	r := result{file: j.file, reading: reading{info: info, sum: sha256.Sum256(data), ends: endsWhole(data)}}
	switch {
	case r.reading.sum == j.sum:
	case !j.unsettled.since.IsZero() && j.unsettled.sum == r.reading.sum:
		r.next = j.unsettled.next
	case len(bytes.TrimSpace(data)) == 0 && len(j.last.objects) > 0:
		r.next = emptied(path, j.last)
	default:
		r.next = j.reader.parseAgain(path, data, j.last).over(j.last)
	}
	return r
}

// workers do jobs in parallel. No small file waits for a large one, and the memory
// for the files being read is bounded.
type workers struct {
	small, large chan struct{} // semaphores
	results      chan result
	stop         <-chan struct{}
	running      sync.WaitGroup
}

func newWorkers(stop <-chan struct{}) *workers {
	return &workers{
		small: make(chan struct{}, 2), large: make(chan struct{}, 1),
		results: make(chan result), stop: stop,
	}
}

// start starts a job, whose result goes to w.results. Nothing waits for a job that
// reads a stream, which may never end.
func (w *workers) start(j job) {
	if j.stream != nil {
		go func() { w.deliver(j.do()) }()
		return
	}
	w.running.Go(func() {
		r, ok := w.try(w.small, j, largeBytes)
		if !ok {
			r, _ = w.try(w.large, j, j.reader.limits.FileBytes)
		}
		w.deliver(r)
	})
}

// deliver sends a result, unless the Source has stopped.
func (w *workers) deliver(r result) {
	select {
	case w.results <- r:
	case <-w.stop:
	}
}

// try does a job when the semaphore admits it. It returns false if the file has more
// than most bytes, but not more than the limit, of which read returns the error.
func (w *workers) try(semaphore chan struct{}, j job, most int64) (result, bool) {
	select {
	case semaphore <- struct{}{}:
	case <-w.stop:
		return result{}, true
	}
	defer func() { <-semaphore }()
	f, err := textfile.Open(j.file.from.path)
	if err != nil {
		return j.failed(err), true
	}
	defer f.Close()
	if size := f.Info.Size(); size > most && size <= j.reader.limits.FileBytes {
		return result{}, false
	}
	return j.read(f), true
}
