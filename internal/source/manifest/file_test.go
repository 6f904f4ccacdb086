package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
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
	s.src.refresh(s.now)
	s.src.index.reportDuplicates(s.src.gone)
	s.view.take(s.store)
	if d := cmp.Diff(want, s.view); d != "" {
		s.t.Errorf("(-want +got):\n%s", d)
	}
}

func TestSettleTime(t *testing.T) {
	dir := t.TempDir()
	stat := func(name string) os.FileInfo {
		write(t, filepath.Join(dir, name), "x")
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		return info
	}
	same, other := stat("same"), stat("other")
	before := reader{}.parse("f", []byte(svc("a", "10.0.0.1")+svc("b", "10.0.0.2")))
	parsed := func(text string) content { return reader{}.parse("f", []byte(text)).over(before) }
	for _, tc := range []struct {
		name string
		info os.FileInfo
		text string
		want time.Duration
	}{
		{"changed in place", same, svc("a", "10.0.0.3") + svc("b", "10.0.0.2"), 0},
		{"replaced", other, svc("a", "10.0.0.3") + svc("b", "10.0.0.2"), 0},
		{"ends in mid-line, in place", same, svc("a", "10.0.0.1") + strings.TrimSuffix(svc("b", "10.0.0.2"), "0\n"), longSettle},
		{"ends in mid-line, replaced", other, strings.TrimSpace(svc("a", "10.0.0.1") + svc("b", "10.0.0.3")), shortSettle},
		{"an object is gone", same, svc("a", "10.0.0.1"), shortSettle},
		{"an object is broken", same, svc("a", "[1]") + svc("b", "10.0.0.2"), shortSettle},
		{"a document is broken", same, svc("a", "10.0.0.1") + "---\n{\n", shortSettle},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &file{content: before, read: reading{info: same, ends: true}}
			r := reading{info: tc.info, ends: endsWhole([]byte(tc.text))}
			if got := settleTime(f, r, parsed(tc.text)); got != tc.want {
				t.Errorf("settle time %v, want %v", got, tc.want)
			}
		})
	}
}

// A file that ends in the middle of a line is used once it has not changed for a long time.
func TestSettlesAfterTheLongTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, svc("a", "10.0.0.1"))
	store := cluster.NewStore()
	s := New(store, Options{Paths: []string{path}})
	must(t, s.Load())
	v := view{}
	v.take(store)
	write(t, path, strings.TrimSpace(svc("a", "10.0.0.2")))
	now := time.Now()
	for _, tc := range []struct {
		after time.Duration
		want  string
	}{
		{0, "[10.0.0.1] "}, {longSettle - time.Millisecond, "[10.0.0.1] "}, {longSettle, "[10.0.0.2] "},
	} {
		s.reread(s.files[path].from, now.Add(tc.after))
		v.take(store)
		if v["a"] != tc.want {
			t.Errorf("after %v: %s, want %s", tc.after, v["a"], tc.want)
		}
	}
	if len(s.rereads) > 0 {
		t.Errorf("files are still unsettled: %v", s.rereads)
	}
}

// A file that is missing for less than the settle time is not treated as deleted.
func TestFileMissingForAMoment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, svc("a", "10.0.0.1"))
	store := cluster.NewStore()
	s := New(store, Options{Paths: []string{path}})
	must(t, s.Load())
	store.Take()
	now := time.Now()
	must(t, os.Rename(path, path+"~"))
	s.refresh(now)
	must(t, os.Rename(path+"~", path))
	s.refresh(now.Add(time.Hour))
	if c := store.Take(); len(c.Services) > 0 || c.Facts != nil || len(s.rereads) > 0 {
		t.Errorf("change %+v, rereads %v", c, s.rereads)
	}
	must(t, os.Remove(path))
	s.refresh(now)
	s.refresh(now.Add(shortSettle))
	if len(store.ServiceNames())+len(s.files)+len(s.rereads) > 0 {
		t.Errorf("left: %v, %v, %v", store.ServiceNames(), s.files, s.rereads)
	}
}

// A file that cannot be read is reported, its content is kept, and it is read again later.
func TestUnreadableForAWhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, svc("a", "10.0.0.1"))
	store := cluster.NewStore()
	var reported []route.Problem
	s := New(store, Options{Paths: []string{path}, Report: func(p []route.Problem) { reported = append(reported, p...) }})
	must(t, s.Load())
	must(t, os.Rename(path, path+"~"))
	must(t, os.Mkdir(path, 0o700))
	s.reread(s.files[path].from, time.Now())
	s.reread(s.files[path].from, time.Now())
	if len(reported) != 1 || reported[0].Object != path || !strings.Contains(reported[0].Reason, isKept) {
		t.Errorf("reported %v", reported)
	}
	if len(store.ServiceNames()) != 1 {
		t.Error("the Service was not kept")
	}
	must(t, os.Remove(path))
	write(t, path, svc("a", "10.0.0.1")+svc("b", "10.0.0.2"))
	s.refresh(time.Now())
	if len(store.ServiceNames()) != 2 {
		t.Errorf("services %v", store.ServiceNames())
	}
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
		s.after(4*shortSettle, same)
		must(t, os.Rename(c, a))
		s.after(0, same)
		s.after(4*shortSettle, same)
	}
	if all := s.reported.all(); len(all) > 0 {
		t.Errorf("reported %q", all)
	}
	write(t, c, svc("a", "10.0.0.2"))
	s.after(0, same)
	if all := s.reported.all(); len(all) != 1 || !strings.Contains(all[0], c) || !strings.Contains(all[0], "also in "+a) {
		t.Errorf("reported %q", all)
	}
}

func TestTrail(t *testing.T) {
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
		want []string
	}{
		{"v1/m/a.yaml", []string{"v1/m/a.yaml"}},
		{"current/m", []string{"current", "v1/m"}},
		{"m/a.yaml", []string{"m", "current", "v1/m/a.yaml"}},
		{"a.yaml", []string{"a.yaml", "m", "current", "v1/m/a.yaml"}},
		{"v1/../v1/m", []string{"v1/m"}},
		{"none/x", []string{"none"}},
		{"dangling", []string{"dangling", "nowhere"}},
	} {
		var want []string
		for _, w := range tc.want {
			want = append(want, filepath.Join(dir, w))
		}
		if d := cmp.Diff(want, trail(filepath.Join(dir, tc.path))); d != "" {
			t.Errorf("trail of %s (-want +got):\n%s", tc.path, d)
		}
	}
	if n := len(trail(filepath.Join(dir, "loop"))); n < maxLinks || n > 2*maxLinks {
		t.Errorf("a loop has a trail of %d", n)
	}
}
