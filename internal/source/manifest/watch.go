package manifest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	quietTime   = 2 * time.Millisecond  // act when there was no event for this long
	longestWait = 10 * time.Millisecond // or when the first event was this long ago
	rescan      = 10 * time.Second      // for file systems without notifications
	mostLinks   = 40                    // of one path, as in the kernel

	mostResults = 100 // results that are taken over before anything else
)

// Run reads all files, then follows changes until the context ends. It reports files
// that cannot be read, and retries. It announces the feed as complete when every
// file was read or failed, unless all failed: then the rules that an earlier process
// wrote stay until there is a file to read.
func (s *Source) Run(ctx context.Context) error {
	w := &watch{source: s, seen: map[string]fs.FileInfo{}}
	notify, err := fsnotify.NewWatcher()
	if err == nil {
		defer notify.Close()
		w.notify = notify
	}
	s.report.Set("watch", unwatched("manifests (on Linux fs.inotify.max_user_instances may be too low)", err))
	s.jobs = newWorkers(ctx.Done())
	defer s.jobs.running.Wait()
	s.reader.stopped = func() bool { return ctx.Err() != nil }
	s.startStreams()
	w.rewatch() // before reading, so that no change is missed
	s.refresh(time.Now())
	w.rewatch()
	return w.loop(ctx)
}

// tryFinishLoad finishes the load once everything that can be read was read.
func (s *Source) tryFinishLoad() {
	if s.loaded || s.waiting > 0 {
		return
	}
	read, failed := s.streams, s.unlisted
	for _, f := range s.files {
		switch {
		case f.busy:
			return
		case f.wasRead:
			read++
		default:
			failed++
		}
	}
	if read > 0 || failed == 0 {
		s.finishLoad()
	}
}

// watch rereads files after events of the file system.
type watch struct {
	notify *fsnotify.Watcher // nil: not available
	source *Source

	seen    map[string]fs.FileInfo // folders that are watched, and their state then
	folders map[string]*root       // roots that are folders, by their real path
	points  map[string]bool        // paths on the way to a root or a linked file

	since  time.Time       // the first event not acted upon; zero: none
	last   time.Time       // the last one
	paths  map[string]bool // files that had events
	always bool            // an event that may concern every file
}

func (w *watch) loop(ctx context.Context) error {
	again := time.NewTicker(rescan)
	defer again.Stop()
	var events chan fsnotify.Event // nil: none will come
	var failures chan error
	if w.notify != nil {
		events, failures = w.notify.Events, w.notify.Errors
	}
	for {
		w.source.tryFinishLoad()
		wake := time.NewTimer(w.wait(time.Now()))
		select {
		case <-ctx.Done():
			wake.Stop()
			return nil
		case r := <-w.source.jobs.results:
			w.finish(r)
		case e, ok := <-events:
			if ok {
				w.note(e, time.Now())
			}
		case err := <-failures: // events were lost
			if err == nil {
				break
			}
			w.touch(time.Now())
			w.always = true
		case <-again.C:
			w.source.budget.Flush()
			w.touch(time.Now())
			w.always = true
		case <-wake.C:
			w.act(time.Now())
		}
		wake.Stop()
	}
}

// finish takes over a result, and others that are ready.
func (w *watch) finish(r result) {
	s := w.source
	s.finish(r, time.Now())
	more := true
	for n := 1; more && n < mostResults; n++ {
		select {
		case r := <-s.jobs.results:
			s.finish(r, time.Now())
		default:
			more = false
		}
	}
	if s.loaded {
		s.index.reportDuplicates(s.gone)
	}
	s.publish()
}

// wait returns the time until the next action is due.
func (w *watch) wait(now time.Time) time.Duration {
	next := now.Add(time.Hour)
	if !w.since.IsZero() {
		next = earlier(w.last.Add(quietTime), w.since.Add(longestWait))
	}
	for _, due := range w.source.rereads {
		next = earlier(next, due)
	}
	return next.Sub(now)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (w *watch) touch(now time.Time) {
	w.last = now
	if w.since.IsZero() {
		w.since = now
	}
}

// note records which files an event concerns.
func (w *watch) note(e fsnotify.Event, now time.Time) {
	if e.Op == fsnotify.Chmod {
		return
	}
	folder, name := filepath.Split(e.Name)
	if r := w.folders[filepath.Clean(folder)]; r != nil && isManifest(name) && !w.points[e.Name] {
		w.touch(now)
		if w.paths == nil {
			w.paths = map[string]bool{}
		}
		w.paths[filepath.Join(r.path, name)] = true
		w.always = w.always || isLink(e.Name)
		return
	}
	if _, watched := w.seen[e.Name]; watched || w.points[e.Name] {
		w.touch(now)
		w.always = true
	}
}

// isLink reports whether a path is a symbolic link, whose target must be watched as
// well.
func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// act rereads files that had events, once no more events come, and files whose
// reread is due.
func (w *watch) act(now time.Time) {
	s := w.source
	pause := !w.since.IsZero() && !now.Before(earlier(w.last.Add(quietTime), w.since.Add(longestWait)))
	if pause && w.always {
		w.rewatch()
		s.refresh(now)
		if w.rewatch() {
			s.refresh(now)
		}
	}
	if pause {
		for path := range w.paths {
			if from, ok := s.rankOf(path); ok {
				s.reread(from, now)
			}
		}
		w.since, w.paths, w.always = time.Time{}, nil, false
	}
	for path, due := range s.rereads {
		if f := s.files[path]; f == nil {
			delete(s.rereads, path)
		} else if !now.Before(due) {
			s.reread(f.from, now)
		}
	}
	if s.loaded {
		s.index.reportDuplicates(s.gone)
	}
	s.publish()
}

// rankOf returns the rank of a path in a watched folder that may be a file.
func (s *Source) rankOf(path string) (rank, bool) {
	if f := s.files[path]; f != nil {
		return f.from, true
	}
	_, err := os.Lstat(path)
	i := slices.IndexFunc(s.roots, func(r *root) bool { return r.folder && r.path == filepath.Dir(path) })
	return rank{i, path}, i >= 0 && err == nil
}

// rewatch updates the set of watched folders, and reports whether it added one.
func (w *watch) rewatch() bool {
	w.folders, w.points = map[string]*root{}, map[string]bool{}
	want := map[string]bool{}
	for _, r := range w.source.roots {
		if r.isStream {
			continue
		}
		steps := trail(r.path)
		w.pass(want, steps)
		real := steps[len(steps)-1]
		entries, err := os.ReadDir(real)
		if err != nil {
			continue
		}
		want[real] = true
		if w.folders[real] == nil {
			w.folders[real] = r
		}
		for _, e := range entries {
			if e.Type()&fs.ModeSymlink != 0 && isManifest(e.Name()) {
				w.pass(want, trail(filepath.Join(real, e.Name())))
			}
		}
	}
	for path := range w.seen {
		if !want[path] {
			_ = w.notify.Remove(path) // fails if the folder was deleted
			delete(w.seen, path)
		}
	}
	added := false
	for path := range want {
		added = w.watchFolder(path) || added
	}
	return added
}

// pass adds the steps of a trail to w.points, and their folders to want.
func (w *watch) pass(want map[string]bool, steps []string) {
	for _, step := range steps {
		w.points[step] = true
		want[filepath.Dir(step)] = true
	}
}

// watchFolder watches a folder, again if it was replaced by another folder, and
// reports whether it began a watch.
func (w *watch) watchFolder(path string) bool {
	if w.notify == nil {
		return false
	}
	info, err := os.Stat(path)
	old := w.seen[path]
	if err == nil && old != nil && os.SameFile(info, old) && slices.Contains(w.notify.WatchList(), path) {
		return false
	}
	if old != nil {
		_ = w.notify.Remove(path) // fails if the folder was deleted
		delete(w.seen, path)
	}
	if err != nil {
		return false // there is nothing to watch yet
	}
	err = w.notify.Add(path)
	w.source.report.Set("watch "+path, unwatched(path, err))
	if err != nil {
		return false
	}
	w.seen[path] = info
	return true
}

// unwatched reports a folder that cannot be watched, and the consequence.
func unwatched(path string, err error) []route.Problem {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return []route.Problem{{
		Object: path, Reason: fmt.Sprintf("cannot be watched, so changes are seen only every %v: %v", rescan, err),
	}}
}

// trail returns the symbolic links on the way to a path, and last their target: the
// real path, or the first path on the way that does not exist.
func trail(path string) []string {
	path, err := filepath.Abs(path)
	if err != nil {
		return []string{filepath.Clean(path)}
	}
	var steps []string
	top := filepath.VolumeName(path) + string(filepath.Separator)
	real, rest := top, parts(path[len(top):])
	for len(rest) > 0 {
		next := filepath.Join(real, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return append(steps, next)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			real = next
			continue
		}
		steps = append(steps, next)
		to, err := os.Readlink(next)
		if err != nil || len(steps) > mostLinks {
			return steps
		}
		if filepath.IsAbs(to) {
			real, to = top, to[len(filepath.VolumeName(to)):]
		}
		rest = append(parts(to), rest...)
	}
	return append(steps, real)
}

// parts returns the elements of a path.
func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator || r == '/' })
}
