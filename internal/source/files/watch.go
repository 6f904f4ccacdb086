package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	actDelay = 3 * time.Millisecond // between an event and the scan: programs write a file in steps
	rescan   = 10 * time.Second     // for file systems without notifications

	maxLinks = 40 // of one path, as in the kernel
)

// Run reads all files, then follows changes until the context ends. It reports files that cannot be read, and retries.
// It announces the feed as complete when every file was read or failed, unless all failed: then the rules that an
// earlier process wrote stay until there is a file to read.
func (s *Source) Run(ctx context.Context) error {
	w := &watch{source: s, watched: map[string]fs.FileInfo{}}
	notify, err := fsnotify.NewWatcher()
	if err == nil {
		defer notify.Close()
		w.notify = notify
	}
	s.report.Set("watch", unwatched("manifests (on Linux fs.inotify.max_user_instances may be too low)", err))
	streams := make(chan stream)
	for _, r := range s.roots {
		if r.isStream {
			go func() { // nothing waits for a stream, which may never end
				select {
				case streams <- s.readStream(r):
				case <-ctx.Done():
				}
			}()
		}
	}
	return w.loop(ctx, streams)
}

// watch scans the files after events of the file system.
type watch struct {
	notify *fsnotify.Watcher // nil: not available
	source *Source

	watched map[string]fs.FileInfo // folders, and their state when the watch began
	folders map[string]bool        // roots that are folders, by their real path
	steps   map[string]bool        // paths on the way to a root or to a linked file
}

func (w *watch) loop(ctx context.Context, streams <-chan stream) error {
	s := w.source
	again := time.NewTicker(rescan)
	defer again.Stop()
	var events chan fsnotify.Event // nil: none will come
	var failures chan error
	if w.notify != nil {
		events, failures = w.notify.Events, w.notify.Errors
	}
	w.scan(ctx)
	for {
		s.tryFinishLoad()
		var wake <-chan time.Time // nil: nothing is due
		if !s.next.IsZero() {
			wake = time.After(time.Until(s.next))
		}
		select {
		case <-ctx.Done():
			return nil
		case in := <-streams:
			s.useStream(ctx, in)
		case e := <-events:
			if w.concerns(e.Name) {
				s.scanAt(time.Now().Add(actDelay))
			}
		case err := <-failures:
			if err != nil { // events were lost
				s.scanAt(time.Now().Add(actDelay))
			}
		case <-again.C:
			s.scanAt(time.Now())
		case <-wake:
			w.scan(ctx)
		}
	}
}

// scan scans the files. It watches their folders before, so that it misses no change.
func (w *watch) scan(ctx context.Context) {
	for range 2 { // the folders may have changed meanwhile
		added := w.rewatch()
		w.source.scan(ctx, time.Now())
		if !added {
			return
		}
	}
}

// concerns reports whether an event at a path may be a change of a file.
func (w *watch) concerns(path string) bool {
	return w.steps[path] || w.folders[filepath.Dir(path)] && isManifest(filepath.Base(path))
}

// rewatch updates the set of watched folders, and reports whether it added one.
func (w *watch) rewatch() bool {
	w.folders, w.steps = map[string]bool{}, map[string]bool{}
	for _, r := range w.source.roots {
		if r.isStream {
			continue
		}
		real := w.follow(r.path)
		entries, err := os.ReadDir(real)
		if err != nil {
			continue
		}
		w.folders[real] = true
		for _, e := range entries {
			if e.Type()&fs.ModeSymlink != 0 && isManifest(e.Name()) {
				w.follow(filepath.Join(real, e.Name()))
			}
		}
	}
	want := map[string]bool{}
	for step := range w.steps {
		want[filepath.Dir(step)] = true
	}
	for folder := range w.folders {
		want[folder] = true
	}
	for path := range w.watched {
		if !want[path] {
			w.unwatch(path)
		}
	}
	added := false
	for path := range want {
		added = w.watchFolder(path) || added
	}
	return added
}

// follow adds the symbolic links on the way to a path to w.steps, and their target, which
// it returns: the real path, or the first path on the way that does not exist.
func (w *watch) follow(path string) string {
	path, err := filepath.Abs(path)
	for links := 0; err == nil && links < maxLinks; links++ {
		link, target := firstLink(path)
		w.steps[link] = true
		if target == "" {
			return link
		}
		path = filepath.Join(target, path[len(link):])
	}
	return path
}

// firstLink returns the first symbolic link on the way to an absolute path, with its
// target. If there is none, it returns the path, or the first path that does not exist.
func firstLink(path string) (link, target string) {
	for i := len(filepath.VolumeName(path)) + 1; i <= len(path); i++ {
		if i < len(path) && !os.IsPathSeparator(path[i]) {
			continue
		}
		at := path[:i]
		if _, err := os.Lstat(at); err != nil {
			return at, ""
		}
		to, err := os.Readlink(at)
		if err != nil {
			continue
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(at), to)
		}
		return at, to
	}
	return path, ""
}

// watchFolder watches a folder, again if it was replaced by another folder, and reports whether it began a watch.
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
		w.unwatch(path)
	}
	if err != nil {
		return false // there is nothing to watch yet
	}
	err = w.notify.Add(path)
	w.source.report.Set("watch "+path, unwatched(path, err))
	if err == nil {
		w.watched[path] = info
	}
	return err == nil
}

func (w *watch) unwatch(path string) {
	_ = w.notify.Remove(path) // fails if the folder was deleted
	delete(w.watched, path)
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
