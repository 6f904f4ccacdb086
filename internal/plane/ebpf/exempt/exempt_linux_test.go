package exempt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tree is a folder that stands for the cgroups, with the set of exempt ones.
type tree struct {
	t    *testing.T
	root string

	mu   sync.Mutex
	ids  map[uint64]bool
	fail error
}

func (x *tree) replace(ids map[uint64]bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.fail == nil {
		x.ids = ids
	}
	return x.fail
}

func (x *tree) mkdir(dir string) {
	x.t.Helper()
	if err := os.MkdirAll(filepath.Join(x.root, dir), 0o755); err != nil {
		x.t.Fatal(err)
	}
}

func inode(dir string) (uint64, error) {
	var stat unix.Stat_t
	err := unix.Stat(dir, &stat)
	return stat.Ino, err
}

// exempt lists the folders that are exempt.
func (x *tree) exempt() (list []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	_ = filepath.Walk(x.root, func(path string, _ os.FileInfo, err error) error { // what is gone is not exempt
		if id, failed := inode(path); err == nil && failed == nil && x.ids[id] {
			name, _ := filepath.Rel(x.root, path) // it is below
			list = append(list, name)
		}
		return nil
	})
	slices.Sort(list)
	return list
}

// want waits until exactly these folders are exempt.
func (x *tree) want(list ...string) {
	x.t.Helper()
	slices.Sort(list)
	var got []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if got = x.exempt(); slices.Equal(got, list) {
			return
		}
	}
	x.t.Fatalf("exempt are %q, want %q", got, list)
}

// newTree returns a tree, and a Follower of it that does not run yet.
func newTree(t *testing.T, patterns ...string) (*tree, *Follower) {
	t.Helper()
	x := &tree{t: t, root: t.TempDir(), ids: map[uint64]bool{}}
	failed := func(err error) { t.Log(err) }
	return x, New(Options{Root: x.root, Patterns: patterns, ID: inode, Exempt: x.replace, Failed: failed})
}

// run runs a Follower until the test ends.
func run(t *testing.T, f *Follower) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

func TestFollowsCgroups(t *testing.T) {
	x, f := newTree(t, "system.slice/nfs-*", "mesh/*/proxy")
	x.mkdir("system.slice/nfs-a")
	x.mkdir("system.slice/other")
	if err := f.Search(); err != nil {
		t.Fatal(err)
	}
	if f.Count() != 1 {
		t.Errorf("%d are exempt, want 1", f.Count())
	}
	x.want("system.slice/nfs-a")
	run(t, f)

	x.mkdir("system.slice/nfs-b")
	x.want("system.slice/nfs-a", "system.slice/nfs-b")
	x.mkdir("mesh/pod-1/proxy/deep") // several folders at once, of which none was watched
	x.want("mesh/pod-1/proxy", "system.slice/nfs-a", "system.slice/nfs-b")
	if err := errors.Join(os.RemoveAll(filepath.Join(x.root, "mesh")),
		os.Remove(filepath.Join(x.root, "system.slice/nfs-a"))); err != nil {
		t.Fatal(err)
	}
	x.want("system.slice/nfs-b")
	x.mkdir("mesh/pod-2/proxy") // the folder is a new one
	x.want("mesh/pod-2/proxy", "system.slice/nfs-b")
	x.mkdir("mesh/pod-3/proxy")
	x.want("mesh/pod-2/proxy", "mesh/pod-3/proxy", "system.slice/nfs-b")
}

// A folder that replaces a deleted one is watched, also if it has the same inode.
func TestFollowsReplacedFolders(t *testing.T) {
	x, f := newTree(t, "mesh/*/proxy")
	run(t, f)
	for range 30 {
		x.mkdir("mesh/pod-1/proxy")
		x.want("mesh/pod-1/proxy")
		if err := os.RemoveAll(filepath.Join(x.root, "mesh")); err != nil {
			t.Fatal(err)
		}
		x.mkdir("mesh/pod-2")
		time.Sleep(20 * time.Millisecond) // the search for the folder is over
		x.mkdir("mesh/pod-2/proxy")
		x.want("mesh/pod-2/proxy")
		if err := os.RemoveAll(filepath.Join(x.root, "mesh")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFailure(t *testing.T) {
	x, f := newTree(t, "a")
	x.fail = errors.New("injected")
	if err := f.Search(); !errors.Is(err, x.fail) {
		t.Errorf("Search returns %v, want %v", err, x.fail)
	}
}
