package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// steppedSource is a Source that a test refreshes explicitly, in fake time.
type steppedSource struct {
	t        *testing.T
	src      *Source
	store    *cluster.Store
	view     view
	now      time.Time
	reported reports
}

func loaded(t *testing.T, path string) *steppedSource {
	t.Helper()
	s := &steppedSource{t: t, store: cluster.NewStore(), view: view{}, now: time.Now()}
	s.src = New(s.store, Options{Paths: []string{path}, Report: s.reported.add})
	must(t, s.src.Load())
	s.view.take(s.store)
	return s
}

// after refreshes the Source after some time, and compares the Services.
func (s *steppedSource) after(d time.Duration, want view) {
	s.t.Helper()
	s.now = s.now.Add(d)
	s.src.scan(s.t.Context(), s.now)
	s.view.take(s.store)
	if d := cmp.Diff(want, s.view); d != "" {
		s.t.Errorf("(-want +got):\n%s", d)
	}
}

// settled compares the Services after files have settled.
func (s *steppedSource) settled(want view) {
	s.t.Helper()
	s.src.scan(s.t.Context(), s.now)
	s.after(settle, want)
}

// A file that is written in place is read once it has not changed for a while; one that is replaced is read at once.
func TestSettle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, svc("a", "10.0.0.1"))
	s := loaded(t, path)
	one := view{"a": "[10.0.0.1] "}
	write(t, path, svc("a", "10.0.0.2")+"\n")
	s.after(0, one)
	write(t, path, svc("a", "10.0.0.3")+"\n\n")
	s.after(settle-1, one)
	s.after(settle-1, one)
	if s.src.next.IsZero() {
		t.Error("no scan is scheduled")
	}
	s.after(1, view{"a": "[10.0.0.3] "})
	write(t, path+"~", svc("a", "10.0.0.4"))
	must(t, os.Rename(path+"~", path))
	s.after(0, view{"a": "[10.0.0.4] "})
}

// A file that changes all the time is read now and then.
func TestAFileThatNeverSettles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, svc("a", "10.0.0.1"))
	s := loaded(t, path)
	step := settle / 2
	for n := time.Duration(0); n < maxSettle; n += step {
		write(t, path, svc("a", "10.0.0.2")+strings.Repeat("\n", 1+int(n/step)))
		s.after(step, view{"a": "[10.0.0.1] "})
	}
	write(t, path, svc("a", "10.0.0.3"))
	s.after(step, view{"a": "[10.0.0.3] "})
}

// A file that is missing for less than the settle time is not treated as deleted.
func TestFileMissingForAMoment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, svc("a", "10.0.0.1"))
	s := loaded(t, path)
	one := view{"a": "[10.0.0.1] "}
	must(t, os.Rename(path, path+"~"))
	s.after(0, one)
	must(t, os.Rename(path+"~", path))
	s.after(time.Hour, one)
	must(t, os.Remove(path))
	s.after(0, one)
	s.after(settle, view{})
	if len(s.src.files) > 0 || !s.src.next.IsZero() {
		t.Errorf("left: %v, %v", s.src.files, s.src.next)
	}
}

// A file that cannot be read is reported, its content is kept, and it is read again later.
func TestUnreadableForAWhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, svc("a", "10.0.0.1"))
	s := loaded(t, path)
	one := view{"a": "[10.0.0.1] "}
	must(t, os.Rename(path, path+"~"))
	must(t, os.Symlink("nowhere", path))
	s.settled(one)
	s.settled(one)
	if all := s.reported.all(); len(all) != 1 || !strings.HasPrefix(all[0], path) || !strings.Contains(all[0], isKept) {
		t.Errorf("reported %v", all)
	}
	must(t, os.Remove(path))
	write(t, path, svc("a", "10.0.0.1")+svc("b", "10.0.0.2"))
	s.settled(view{"a": "[10.0.0.1] ", "b": "[10.0.0.2] "})
}

// A file that is renamed and renamed back does not count as two files.
func TestARenamedFileIsNotADuplicate(t *testing.T) {
	dir := t.TempDir()
	a, c := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "c.yaml")
	write(t, a, svc("a", "10.0.0.1"))
	s := loaded(t, dir)
	same := view{"a": "[10.0.0.1] "}
	for range 2 {
		must(t, os.Rename(a, c))
		s.after(0, same)
		s.after(settle, same)
		must(t, os.Rename(c, a))
		s.after(0, same)
		s.after(settle, same)
	}
	if all := s.reported.all(); len(all) > 0 {
		t.Errorf("reported %q", all)
	}
	write(t, c, svc("a", "10.0.0.2"))
	s.settled(same)
	if all := s.reported.all(); len(all) != 1 || !strings.Contains(all[0], c) || !strings.Contains(all[0], "also in "+a) {
		t.Errorf("reported %q", all)
	}
}

// All symbolic links on the way to a path are watched.
func TestFollow(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(dir, "v1", "m"), 0o700))
	write(t, filepath.Join(dir, "v1", "m", "a.yaml"), "")
	link := func(to, name string) { must(t, os.Symlink(to, filepath.Join(dir, name))) }
	link("v1", "current")
	link(filepath.Join(dir, "current", "m"), "m")
	link("../"+filepath.Base(dir)+"/m/a.yaml", "a.yaml")
	link("loop", "loop")
	link("nowhere/x", "dangling")
	for _, tc := range []struct {
		path string
		want []string // the target last
	}{
		{"v1/m/a.yaml", []string{"v1/m/a.yaml"}},
		{"current/m", []string{"current", "v1/m"}},
		{"m/a.yaml", []string{"m", "current", "v1/m/a.yaml"}},
		{"a.yaml", []string{"a.yaml", "m", "current", "v1/m/a.yaml"}},
		{"v1/../v1/m", []string{"v1/m"}},
		{"none/x", []string{"none"}},
		{"dangling", []string{"dangling", "nowhere"}},
	} {
		want := map[string]bool{}
		for _, step := range tc.want {
			want[filepath.Join(dir, step)] = true
		}
		w := &watch{steps: map[string]bool{}}
		got := w.follow(filepath.Join(dir, tc.path))
		if last := filepath.Join(dir, tc.want[len(tc.want)-1]); got != last {
			t.Errorf("%s leads to %s, want %s", tc.path, got, last)
		}
		if d := cmp.Diff(want, w.steps); d != "" {
			t.Errorf("steps to %s (-want +got):\n%s", tc.path, d)
		}
	}
	w := &watch{steps: map[string]bool{}}
	w.follow(filepath.Join(dir, "loop")) // ends
}
