package reload

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// often is how often a test looks at a file without being told of a change: more
// seldom than it waits for one, so that it is the notifications that are seen.
const often = 2 * patience

// watcher is a running Watch. What the file said at each call is in calls.
type watcher struct {
	calls chan string
	log   *safeBuffer
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs Watch, and returns once it watches.
func start(t *testing.T, path string) *watcher {
	t.Helper()
	return follow(t, &watch{path: path, open: fsnotify.NewWatcher, poll: often, unrest: maxUnrest})
}

func follow(t *testing.T, inner *watch) *watcher {
	t.Helper()
	path := inner.path
	w := &watcher{calls: make(chan string, 10), log: &safeBuffer{}}
	inner.log = slog.New(slog.NewTextHandler(w.log, nil))
	inner.told = inner.look()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		inner.run(ctx, func() { w.calls <- says(path) })
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	w.expect(t, says(path), time.Second)
	return w
}

func says(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return cause(err)
	}
	return string(data)
}

func cause(err error) string {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}

// expect waits for one call, and for no other right after it.
func (w *watcher) expect(t *testing.T, want string, within time.Duration) {
	t.Helper()
	select {
	case got := <-w.calls:
		if got != want {
			t.Errorf("told of %q, want %q", got, want)
		}
	case <-time.After(within):
		t.Fatalf("not told of %q", want)
	}
	w.silent(t, 3*calm)
}

func (w *watcher) silent(t *testing.T, during time.Duration) {
	t.Helper()
	select {
	case got := <-w.calls:
		t.Errorf("told of %q, want nothing", got)
	case <-time.After(during):
	}
}

// soon is enough for what is not doubted: much less than it would take to doubt
// it or to find it by looking now and then.
const soon = patience - 500*time.Millisecond

// mounted makes a folder as the kubelet mounts a ConfigMap, and returns the path
// of the file in it.
func mounted(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	mkdir(t, filepath.Join(dir, "..2026_01"))
	write(t, filepath.Join(dir, "..2026_01", "config.conf"), text)
	link(t, "..2026_01", filepath.Join(dir, "..data"))
	link(t, "..data/config.conf", filepath.Join(dir, "config.conf"))
	return filepath.Join(dir, "config.conf")
}

// swap puts a new version into such a folder, as the kubelet does.
func swap(t *testing.T, path, version, text string) {
	t.Helper()
	dir := filepath.Dir(path)
	old, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		t.Fatal(err)
	}
	mkdir(t, filepath.Join(dir, version))
	write(t, filepath.Join(dir, version, "config.conf"), text)
	link(t, version, filepath.Join(dir, "..data_tmp"))
	rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
	remove(t, filepath.Join(dir, old))
}

// Every update of a ConfigMap is seen, the second and third too.
func TestConfigMap(t *testing.T) {
	t.Parallel()
	path := mounted(t, "one\n")
	w := start(t, path)
	swap(t, path, "..2026_02", "two\n")
	w.expect(t, "two\n", soon)
	swap(t, path, "..2026_03", "two\n") // nothing new in this file
	w.silent(t, 4*calm)
	swap(t, path, "..2026_04", "three\n")
	w.expect(t, "three\n", soon)
}

// A ConfigMap whose folder is reached by links of its own, along the way and in
// the version.
func TestLinksAlongTheWay(t *testing.T) {
	t.Parallel()
	path := mounted(t, "one\n")
	dir := t.TempDir()
	link(t, filepath.Dir(path), filepath.Join(dir, "here"))
	link(t, "here", filepath.Join(dir, "there"))
	w := start(t, filepath.Join(dir, "there", ".", "config.conf"))
	swap(t, path, "..2026_02", "two\n")
	w.expect(t, "two\n", soon)

	other := filepath.Join(dir, "other")
	mkdir(t, other)
	write(t, filepath.Join(other, "config.conf"), "three\n")
	link(t, "../"+filepath.Base(dir)+"/other", filepath.Join(dir, "new"))
	rename(t, filepath.Join(dir, "new"), filepath.Join(dir, "here"))
	w.expect(t, "three\n", soon)
	write(t, filepath.Join(other, "config.conf"), "four\n")
	w.expect(t, "four\n", soon)
}

// However a program saves a file, what it saved is seen.
func TestWaysToSave(t *testing.T) {
	for name, save := range map[string]func(t *testing.T, path, text string){
		"in place": write,
		"a new one renamed over it": func(t *testing.T, path, text string) {
			write(t, path+".tmp", text)
			rename(t, path+".tmp", path)
		},
		"the old one renamed away, a new one written": func(t *testing.T, path, text string) {
			rename(t, path, path+"~")
			write(t, path, text)
		},
		"removed and made again": func(t *testing.T, path, text string) {
			remove(t, path)
			time.Sleep(4 * calm)
			write(t, path, text)
		},
		"the folder replaced": func(t *testing.T, path, text string) {
			dir := filepath.Dir(path)
			mkdir(t, dir+".new")
			write(t, filepath.Join(dir+".new", filepath.Base(path)), text)
			rename(t, dir, dir+".old")
			rename(t, dir+".new", dir)
			remove(t, dir+".old")
		},
		"the folder of the folder removed and made again": func(t *testing.T, path, text string) {
			remove(t, filepath.Dir(filepath.Dir(path)))
			mkdir(t, filepath.Dir(path))
			write(t, path, text)
		},
		"in many small parts": func(t *testing.T, path, text string) {
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			for part := range strings.SplitSeq(text, "") {
				if _, err := f.WriteString(part); err != nil {
					t.Fatal(err)
				}
				time.Sleep(calm / 10)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "kube-proxy", "etc", "config.conf")
			mkdir(t, filepath.Dir(path))
			write(t, path, "one\n")
			w := start(t, path)
			for _, text := range []string{"two\n", "three\n"} {
				save(t, path, text)
				w.expect(t, text, soon)
			}
		})
	}
}

// Half a file is not believed for a while; one that stays half is.
func TestHalfWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "one: 1\n")
	w := start(t, path)
	write(t, path, "two: 1\nthr")
	w.silent(t, patience/2)
	write(t, path, "two: 1\nthree: 2\n")
	w.expect(t, "two: 1\nthree: 2\n", soon)
	write(t, path, "")
	w.expect(t, "", 2*patience)
	write(t, path, `{"four": 4}`)
	w.expect(t, `{"four": 4}`, soon)
}

// A file that is gone, or that may not be read any more, is told, and its return.
func TestGoneAndBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "one\n")
	w := start(t, path)
	remove(t, path)
	w.silent(t, patience/2)
	w.expect(t, "no such file or directory", 2*patience)
	write(t, path, "one\n")
	w.expect(t, "one\n", soon)

	remove(t, path)
	mkdir(t, path) // who is root may read everything but a folder
	w.expect(t, "is a directory", 2*patience)
	remove(t, path)
	write(t, path, "two\n")
	w.expect(t, "two\n", soon)
	if os.Geteuid() == 0 {
		return
	}
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	w.expect(t, "permission denied", 2*patience)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	w.expect(t, "two\n", soon)
}

// A file that is not there at start is seen when it comes, with its folders.
func TestNotThereYet(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a", "b", "config.conf")
	w := start(t, path)
	mkdir(t, filepath.Dir(path))
	time.Sleep(2 * calm)
	write(t, path, "one\n")
	w.expect(t, "one\n", soon)
}

// Other files of the folder are nobody's business.
func TestOtherFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "one\n")
	w := start(t, path)
	write(t, path+".swp", "x")
	write(t, path, "one\n")
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		t.Fatal(err)
	}
	w.silent(t, 6*calm)
}

// Without notifications the file is looked at now and then, and that is said
// once.
func TestWithoutNotifications(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "one\n")
	none := errors.New("too many open files")
	const now = 300 * time.Millisecond
	w := follow(t, &watch{path: path, open: func() (*fsnotify.Watcher, error) { return nil, none }, poll: now, unrest: maxUnrest})
	for _, text := range []string{"two\n", "three\n"} {
		write(t, path, text)
		w.expect(t, text, now+soon)
	}
	if got := strings.Count(w.log.String(), "too many open files"); got != 1 {
		t.Errorf("told %d times:\n%s", got, w.log)
	}
}

// Every name on the way is known, links and what they lead to, and a circle
// has an end.
func TestLookups(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mkdir(t, filepath.Join(dir, "v1"))
	write(t, filepath.Join(dir, "v1", "f"), "x")
	link(t, "v1", filepath.Join(dir, "..data"))
	link(t, "..data/f", filepath.Join(dir, "f"))
	link(t, filepath.Join(dir, "f"), filepath.Join(dir, "g"))
	link(t, "circle", filepath.Join(dir, "circle"))
	for name, want := range map[string][]string{
		"v1/f":        {"v1", "v1/f"},
		"f":           {"..data", "f", "v1", "v1/f"},
		"g":           {"..data", "f", "g", "v1", "v1/f"},
		"v1/../v1/f":  {"v1", "v1/f"},
		"gone/f":      {"gone"},
		"circle":      {"circle"},
		"..data/gone": {"..data", "v1", "v1/gone"},
	} {
		var got []string
		for _, n := range lookups(dir + "/" + name) {
			if below, ok := strings.CutPrefix(n, dir+"/"); ok {
				got = append(got, below)
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
