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

func TestPatience(t *testing.T) {
	dir := t.TempDir()
	stat := func(name string) os.FileInfo {
		write(t, filepath.Join(dir, name), "x")
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		return info
	}
	same, other := stat("same"), stat("other")
	was := reader{}.parse("f", []byte(svc("a", "10.0.0.1")+svc("b", "10.0.0.2")))
	parsed := func(text string) content { return reader{}.parse("f", []byte(text)).over(was) }
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
			f := &file{content: was, read: reading{info: same, ends: true}}
			r := reading{info: tc.info, ends: endsWhole([]byte(tc.text))}
			if got := settleTime(f, r, parsed(tc.text)); got != tc.want {
				t.Errorf("settle time %v, want %v", got, tc.want)
			}
		})
	}
}

// A file that ends in mid-line is believed once nobody touched it for long.
func TestLongDoubtEnds(t *testing.T) {
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
		t.Errorf("there is still unsettled: %v", s.rereads)
	}
}

// A file that goes away for less than the settle time has never been away.
func TestGoneForAMoment(t *testing.T) {
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

// What cannot be read for a while is reported, kept, and good again later.
func TestUnreadableForAWhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, svc("a", "10.0.0.1"))
	store := cluster.NewStore()
	var told []route.Problem
	s := New(store, Options{Paths: []string{path}, Report: func(p []route.Problem) { told = append(told, p...) }})
	must(t, s.Load())
	must(t, os.Rename(path, path+"~"))
	must(t, os.Mkdir(path, 0o700))
	s.reread(s.files[path].from, time.Now())
	s.reread(s.files[path].from, time.Now())
	if len(told) != 1 || told[0].Object != path || !strings.Contains(told[0].Reason, "kept") {
		t.Errorf("told %v", told)
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

// A file that gets another name, and its old one again, is never in two files.
func TestRenamedFileContestsNothing(t *testing.T) {
	dir := t.TempDir()
	a, c := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "c.yaml")
	write(t, a, svc("a", "10.0.0.1"))
	r := run(t, dir)
	for range 2 {
		must(t, os.Rename(a, c))
		r.stays(4 * shortSettle)
		must(t, os.Rename(c, a))
		r.stays(4 * shortSettle)
	}
	r.mu.Lock()
	if len(r.told) > 0 {
		t.Errorf("told %q", r.told)
	}
	r.mu.Unlock()
	write(t, c, svc("a", "10.0.0.2"))
	r.hears(c, "Service default/a", "also in "+a)
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
		{"none/there", []string{"none"}},
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
	if n := len(trail(filepath.Join(dir, "loop"))); n < mostLinks || n > 2*mostLinks {
		t.Errorf("a loop has a trail of %d", n)
	}
}
