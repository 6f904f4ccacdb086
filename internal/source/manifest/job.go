package manifest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"sync"

	"github.com/sluice-proxy/sluice/internal/textfile"
)

// largeBytes is the size from which on files are read one at a time, apart from
// smaller ones, and documents are converted one at a time.
const largeBytes = 256 << 10

// job is the work of reading a file. It changes nothing, so that any goroutine
// may do it.
type job struct {
	file      *file // not read, except for its path
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

// do reads the file.
func (j job) do() result {
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
	path := j.file.from.path
	r := result{file: j.file, reading: reading{info: f.Info, sum: sha256.Sum256(data), ends: endsWhole(data)}}
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

// start starts a job, whose result goes to w.results.
func (w *workers) start(j job) {
	w.running.Go(func() {
		r, ok := w.try(w.small, j, largeBytes)
		if !ok {
			r, _ = w.try(w.large, j, 0)
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
// than most bytes; 0 sets no limit.
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
	if size := f.Info.Size(); most > 0 && size > most && size <= j.reader.limits.FileBytes {
		return result{}, false
	}
	return j.read(f), true
}
