package reload

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/textfile"
)

// How long a file must have stayed as it is before it is believed.
const (
	calm     = 50 * time.Millisecond // writers make several changes in a row
	patience = 2 * time.Second       // it is gone, empty, or ends in the middle of a line
)

// maxUnrest is how long a file may keep changing before it is read as it is.
const maxUnrest = 10 * time.Second

// pollPeriod is how often a file is looked at when nothing says that it
// changed. Some file systems say nothing.
const pollPeriod = 10 * time.Second

// mostLinks ends the search along symbolic links that lead in a circle.
const mostLinks = 40

// Watch calls changed once it watches the file, and then whenever the file says
// something else, is gone, or cannot be read any more. It follows symbolic links
// anywhere in the path, as those of a mounted ConfigMap. It returns when the
// context ends.
//
// A change is told within a tenth of a second, one that looks unfinished after
// two. Where the kernel has no watch left, it is within ten; that is logged once.
func Watch(ctx context.Context, path string, log *slog.Logger, changed func()) {
	path, err := filepath.Abs(path)
	if err != nil {
		log.Warn("The configuration file cannot be watched", "file", path, "error", err)
		return
	}
	w := &watch{path: path, log: log, open: fsnotify.NewWatcher, poll: pollPeriod, unrest: maxUnrest}
	w.told = w.look()
	w.run(ctx, changed)
}

// watch is a file that is watched.
type watch struct {
	path string
	log  *slog.Logger
	open func() (*fsnotify.Watcher, error)
	poll time.Duration

	unrest time.Duration // how long the file may keep changing before it is read

	told   state // what changed was called for last
	polled bool  // that there are no notifications was logged
}

// state is what a file says, or why it does not.
type state struct {
	sum   [sha256.Size]byte
	doubt bool // it may not stay so
}

func (w *watch) look() state {
	data, err := config.ReadFile(w.path)
	if tooLarge, ok := errors.AsType[*textfile.TooLargeError](err); ok {
		tooLarge.Size = 0 // it may grow on
	}
	if err != nil {
		return state{sum: sha256.Sum256([]byte(err.Error())), doubt: true}
	}
	whole := strings.HasSuffix(string(data), "\n") || strings.HasSuffix(string(data), "}")
	return state{sum: sha256.Sum256(data), doubt: !whole}
}

// run makes a new notifier after every change, because what decides about the
// content may be somewhere else then.
func (w *watch) run(ctx context.Context, changed func()) {
	changed()
	for ctx.Err() == nil {
		notify, names := w.notifier()
		now, ok := w.next(ctx, notify, names)
		if notify != nil {
			_ = notify.Close() // it is not used again
		}
		if ok && now.sum != w.told.sum {
			w.told = now
			changed()
		}
	}
}

// next waits until something happened to the file and it has stayed as it is
// since for long enough.
func (w *watch) next(ctx context.Context, notify *fsnotify.Watcher, names []string) (state, bool) {
	now := w.look()
	if now.sum == w.told.sum && !w.wait(ctx, notify, names) {
		return state{}, false
	}
	now = w.look()
	begin := time.Now()
	for since := begin; ; {
		if !sleep(ctx, calm) {
			return state{}, false
		}
		again := w.look()
		if again != now && time.Since(begin) < w.unrest {
			now, since = again, time.Now()
			continue
		}
		if again != now {
			return again, true
		}
		if !now.doubt || now.sum == w.told.sum || time.Since(since) >= patience {
			return now, true
		}
	}
}

// wait returns true when something happened to the file.
func (w *watch) wait(ctx context.Context, notify *fsnotify.Watcher, names []string) bool {
	tick := time.NewTicker(w.poll)
	defer tick.Stop()
	var events chan fsnotify.Event // nil: none will come
	var failures chan error
	if notify != nil {
		events, failures = notify.Events, notify.Errors
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case e := <-events:
			if slices.Contains(names, e.Name) {
				return true
			}
		case err := <-failures: // events may be lost
			w.log.Debug("Watching a file", "file", w.path, "error", err)
			return true
		case <-tick.C:
			if notify == nil || w.look().sum != w.told.sum {
				return true
			}
		}
	}
}

// notifier returns one that tells of all that decides what the file says, as far
// as the kernel lets it, and the names to look for in what it tells; nil if there
// is none to be had.
func (w *watch) notifier() (*fsnotify.Watcher, []string) {
	notify, err := w.open()
	if err != nil {
		w.without(err)
		return nil, nil
	}
	for names := lookups(w.path); ; {
		for _, name := range names {
			if err := notify.Add(filepath.Dir(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				w.without(err)
			}
		}
		again := lookups(w.path)
		if slices.Equal(again, names) {
			return notify, names
		}
		names = again
	}
}

func (w *watch) without(err error) {
	if !w.polled {
		w.log.Warn("No notifications about the configuration file, looking at it now and then",
			"file", w.path, "every", w.poll, "error", err)
	}
	w.polled = true
}

// lookups returns every name that is looked up on the way to a file, each as a
// path whose folder is no link. The way ends where a name is missing.
func lookups(path string) []string {
	var names []string
	folder := "/"
	rest := strings.Split(strings.Trim(path, "/"), "/")
	for links := 0; len(rest) > 0; {
		name := filepath.Join(folder, rest[0])
		rest = rest[1:]
		if name != folder && name != filepath.Dir(folder) { // "." and ".."
			names = append(names, name)
		}
		info, err := os.Lstat(name)
		if err != nil {
			break
		}
		if info.Mode()&os.ModeSymlink == 0 {
			folder = name
			continue
		}
		target, err := os.Readlink(name)
		links++
		if err != nil || links > mostLinks {
			break
		}
		if filepath.IsAbs(target) {
			folder = "/"
		}
		rest = append(strings.Split(strings.Trim(target, "/"), "/"), rest...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// sleep returns false if the context ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
