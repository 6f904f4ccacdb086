// Package exempt finds the cgroups whose processes are not balanced at their sockets, by patterns. It updates the set
// when cgroups are created and removed.
package exempt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// searchDelay is the time from an event to the search, as cgroups are created in groups. It is shorter than the time
	// from the creation of a container's cgroup to its first process.
	searchDelay = 2 * time.Millisecond

	rescan = 30 * time.Second // period of searches without an event, as events may be lost
	retry  = 5 * time.Second  // after a failure
)

// Options for New.
type Options struct {
	Root     string                              // folder of the cgroup that all patterns are relative to
	Patterns []string                            // of path.Match, element by element: "system.slice/nfs-*"
	ID       func(dir string) (uint64, error)    // returns the id of a cgroup by its folder
	Exempt   func(cgroups map[uint64]bool) error // exempts these cgroups by their ids, and no others
	Failed   func(error)                         // called with each error; Run retries
}

// Follower updates the set of exempt cgroups. Only Count may be called beside other methods.
type Follower struct {
	opt    Options
	count  atomic.Int64      // of exempt cgroups
	notify *fsnotify.Watcher // nil: nothing is watched
}

// New returns a Follower that has not searched yet.
func New(o Options) *Follower { return &Follower{opt: o} }

// Count returns the number of cgroups that the last search exempted.
func (f *Follower) Count() int { return int(f.count.Load()) }

// Search finds the cgroups, and exempts them.
func (f *Follower) Search() error {
	ids := map[uint64]bool{}
	for _, pattern := range f.opt.Patterns {
		f.find(ids, f.opt.Root, strings.Split(pattern, "/"))
	}
	if err := f.opt.Exempt(ids); err != nil {
		return err
	}
	f.count.Store(int64(len(ids)))
	return nil
}

// find adds the ids of the cgroups below a folder whose paths match a pattern, element by element.
func (f *Follower) find(ids map[uint64]bool, dir string, pattern []string) {
	if len(pattern) == 0 {
		if id, err := f.opt.ID(dir); err == nil { // otherwise it is gone
			ids[id] = true
		}
		return
	}
	f.watch(dir)                  // before it is read, so that no change is missed
	entries, _ := os.ReadDir(dir) // none if it is gone
	for _, e := range entries {
		if matches, _ := path.Match(pattern[0], e.Name()); matches && e.IsDir() { // patterns are well-formed
			f.find(ids, filepath.Join(dir, e.Name()), pattern[1:])
		}
	}
}

// watch watches a folder. The kernel ends the watch when the folder is deleted.
func (f *Follower) watch(dir string) {
	if f.notify == nil {
		return
	}
	if err := f.notify.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.opt.Failed(&fs.PathError{Op: "watch", Path: dir, Err: err})
	}
}

// Run follows the cgroups until the context ends, and returns nil then. It does not rest as package work does: a
// cgroup must be found before its first process connects.
func (f *Follower) Run(ctx context.Context) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		f.opt.Failed(fmt.Errorf("watch cgroups: %w; they are searched every %s instead", err, rescan))
		notify = &fsnotify.Watcher{}
	} else {
		defer func() { _ = notify.Close() }() // nothing is written
		f.notify = notify
	}
	for ctx.Err() == nil {
		pause := rescan
		if err := f.Search(); err != nil {
			f.opt.Failed(err)
			pause = retry
		}
		f.wait(ctx, notify, pause)
	}
	return nil
}

// wait waits for the next search: until some time after an event, or for a pause without one.
func (f *Follower) wait(ctx context.Context, notify *fsnotify.Watcher, pause time.Duration) {
	due := time.After(pause)
	for changed := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-due:
			return
		case err := <-notify.Errors:
			f.opt.Failed(fmt.Errorf("watch cgroups: %w", err)) // events are lost
			return
		case e := <-notify.Events:
			if !changed && (e.Has(fsnotify.Create) || e.Has(fsnotify.Remove)) { // files of cgroups are written all the time
				due, changed = time.After(searchDelay), true
			}
		}
	}
}
