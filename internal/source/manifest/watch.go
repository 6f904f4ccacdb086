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
	actDelay = 3 * time.Millisecond // between an event and the reread: programs write a file in steps
	rescan   = 10 * time.Second     // for file systems without notifications

	maxLinks   = 40  // of one path, as in the kernel
	maxResults = 100 // that are used before anything else
)

// Run reads all files, then follows changes until the context ends. It reports files
// that cannot be read, and retries. It announces the feed as complete when every
// file was read or failed, unless all failed: then the rules that an earlier process
// wrote stay until there is a file to read.
func (s *Source) Run(ctx context.Context) error {
	w := &watch{source: s, watched: map[string]fs.FileInfo{}}
	notify, err := fsnotify.NewWatcher()
	if err == nil {
		defer notify.Close()
		w.notify = notify
	}
	s.report.Set("watch", unwatched("manifests (on Linux fs.inotify.max_user_instances may be too low)", err))
	s.jobs = newWorkers(ctx.Done())
	defer s.jobs.running.Wait()
	s.reader.stopped = func() bool { return ctx.Err() != nil }
	w.rewatch() // before reading, so that no change is missed
	s.refresh(time.Now())
	w.rewatch()
	return w.loop(ctx)
}

// watch rereads files after events of the file system.
type watch struct {
	notify *fsnotify.Watcher // nil: not available
	source *Source

	watched map[string]fs.FileInfo // folders, and their state when the watch began
	folders map[string]*root       // roots that are folders, by their real path
	links   map[string]bool        // paths on the way to a root or a linked file

	refreshAt time.Time // when to reread all files that changed; zero: not
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
		case err := <-failures:
			if err != nil { // events were lost
				w.refreshSoon(time.Now())
			}
		case <-again.C:
			w.refreshSoon(time.Now())
		case <-wake.C:
			w.act(time.Now())
		}
		wake.Stop()
	}
}

// finish uses a result, and others that are ready.
func (w *watch) finish(r result) {
	s := w.source
	s.finish(r, time.Now())
	for n, more := 1, true; more && n < maxResults; n++ {
		select {
		case r := <-s.jobs.results:
			s.finish(r, time.Now())
		default:
			more = false
		}
	}
	w.publish()
}

// publish reports duplicates and updates the state.
func (w *watch) publish() {
	if w.source.loaded {
		w.source.index.reportDuplicates(w.source.gone)
	}
	w.source.publish()
}

// wait returns the time until the next action is due.
func (w *watch) wait(now time.Time) time.Duration {
	next := now.Add(time.Hour)
	if !w.refreshAt.IsZero() {
		next = w.refreshAt
	}
	for _, due := range w.source.rereads {
		if due.Before(next) {
			next = due
		}
	}
	return next.Sub(now)
}

// refreshSoon schedules a refresh, unless one is due earlier.
func (w *watch) refreshSoon(now time.Time) {
	if w.refreshAt.IsZero() {
		w.refreshAt = now.Add(actDelay)
	}
}

// note schedules the rereads that an event calls for.
func (w *watch) note(e fsnotify.Event, now time.Time) {
	if e.Op == fsnotify.Chmod {
		return
	}
	folder, name := filepath.Split(e.Name)
	if r := w.folders[filepath.Clean(folder)]; r != nil && isManifest(name) && !w.links[e.Name] {
		path, due := filepath.Join(r.path, name), now.Add(actDelay)
		if earlier, ok := w.source.rereads[path]; !ok || due.Before(earlier) {
			w.source.rereads[path] = due
		}
		if isLink(e.Name) { // its target must be watched as well
			w.refreshSoon(now)
		}
		return
	}
	if _, watched := w.watched[e.Name]; watched || w.links[e.Name] {
		w.refreshSoon(now)
	}
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// act does what is due.
func (w *watch) act(now time.Time) {
	s := w.source
	if !w.refreshAt.IsZero() && !now.Before(w.refreshAt) {
		w.refreshAt = time.Time{}
		w.rewatch()
		s.refresh(now)
		if w.rewatch() {
			s.refresh(now)
		}
	}
	for path, due := range s.rereads {
		if now.Before(due) {
			continue
		}
		delete(s.rereads, path)
		if from, ok := s.rankOf(path); ok {
			s.reread(from, now)
		}
	}
	w.publish()
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
	w.folders, w.links = map[string]*root{}, map[string]bool{}
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
	for path := range w.watched {
		if !want[path] {
			_ = w.notify.Remove(path) // fails if the folder was deleted
			delete(w.watched, path)
		}
	}
	added := false
	for path := range want {
		added = w.watchFolder(path) || added
	}
	return added
}

// pass adds the steps of a trail to w.links, and their folders to want.
func (w *watch) pass(want map[string]bool, steps []string) {
	for _, step := range steps {
		w.links[step] = true
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
	old := w.watched[path]
	if err == nil && old != nil && os.SameFile(info, old) && slices.Contains(w.notify.WatchList(), path) {
		return false
	}
	if old != nil {
		_ = w.notify.Remove(path) // fails if the folder was deleted
		delete(w.watched, path)
	}
	if err != nil {
		return false // there is nothing to watch yet
	}
	err = w.notify.Add(path)
	w.source.report.Set("watch "+path, unwatched(path, err))
	if err != nil {
		return false
	}
	w.watched[path] = info
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
		if err != nil || len(steps) > maxLinks {
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
