// Package exempt finds the cgroups whose processes are not balanced at their sockets, by patterns. It updates the set
// when cgroups are created and removed.
package exempt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync"
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

// Follower updates the set of exempt cgroups. It is safe for concurrent use.
type Follower struct {
	opt Options

	mu      sync.Mutex
	count   int             // of exempt cgroups
	folders map[string]bool // read by the last search
}

// New returns a Follower that has not searched yet.
func New(o Options) *Follower { return &Follower{opt: o} }

// Count returns the number of cgroups that the last search exempted.
func (f *Follower) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// Search finds the cgroups, and exempts them.
func (f *Follower) Search() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := newSearch(f.opt.Root, f.opt.ID)
	for _, pattern := range f.opt.Patterns {
		s.byPattern(pattern)
	}
	if err := f.opt.Exempt(s.ids); err != nil {
		return err
	}
	f.count, f.folders = len(s.ids), s.folders
	return nil
}

// Run follows the cgroups until the context ends, and returns nil then.
func (f *Follower) Run(ctx context.Context) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		f.opt.Failed(fmt.Errorf("watch cgroups: %w; they are searched every %s instead", err, rescan))
		notify = &fsnotify.Watcher{}
	} else {
		defer func() { _ = notify.Close() }() // nothing is written
	}
	watched := map[string]bool{}
	for ctx.Err() == nil {
		wait := rescan
		if err := f.Search(); err != nil {
			f.opt.Failed(err)
			wait = retry
		} else if notify.Events != nil && f.watch(notify, watched) {
			continue // a cgroup may have been created after the search and before the watch
		}
		f.wait(ctx, notify, watched, time.After(wait))
	}
	return nil
}

// wait waits for the next search: for an event or the time. It removes deleted folders from watched.
func (f *Follower) wait(ctx context.Context, notify *fsnotify.Watcher, watched map[string]bool, due <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-due:
			return
		case err := <-notify.Errors:
			f.opt.Failed(fmt.Errorf("watch cgroups: %w", err)) // events are lost: watch and search all again
			clear(watched)
			return
		case e := <-notify.Events:
			if e.Has(fsnotify.Create) || e.Has(fsnotify.Remove) { // files of cgroups are written all the time
				forget(watched, e)
				drain(notify.Events, watched)
				return
			}
		}
	}
}

// forget removes a deleted folder from watched: a new folder with its name needs a new watch.
func forget(watched map[string]bool, e fsnotify.Event) {
	if e.Has(fsnotify.Remove) {
		delete(watched, e.Name)
	}
}

// drain receives events until searchDelay has passed.
func drain(events <-chan fsnotify.Event, watched map[string]bool) {
	end := time.After(searchDelay)
	for {
		select {
		case e := <-events:
			forget(watched, e)
		case <-end:
			return
		}
	}
}

// watch watches the folders that the last search has read. It returns true if it has added a watch.
func (f *Follower) watch(notify *fsnotify.Watcher, watched map[string]bool) (more bool) {
	f.mu.Lock()
	folders := maps.Clone(f.folders)
	f.mu.Unlock()
	for dir := range watched {
		if !folders[dir] {
			_ = notify.Remove(dir) // it may be gone
			delete(watched, dir)
		}
	}
	for dir := range folders {
		if watched[dir] {
			continue
		}
		switch err := notify.Add(dir); {
		case err == nil:
			watched[dir], more = true, true
		case !errors.Is(err, fs.ErrNotExist):
			f.opt.Failed(&fs.PathError{Op: "watch", Path: dir, Err: err})
		}
	}
	return more
}
