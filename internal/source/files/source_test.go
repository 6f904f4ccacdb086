package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// testSource is a Source that follows files.
type testSource struct {
	t     *testing.T
	store *cluster.Store
	src   *Source
	view  view

	mu       sync.Mutex
	reported []string
}

func run(t *testing.T, paths ...string) *testSource {
	t.Helper()
	r := &testSource{t: t, store: cluster.NewStore(), view: view{}}
	src := New(r.store, Options{Paths: paths, NodeName: "n1", Report: func(ps []route.Problem) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, p := range ps {
			r.reported = append(r.reported, p.String())
		}
	}})
	r.src = src
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-r.store.Ready():
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was read in 30 s")
	}
	r.view.take(r.store)
	return r
}

// waitFor waits for a state and returns how long it took.
func (r *testSource) waitFor(want view) time.Duration {
	r.t.Helper()
	begin := time.Now()
	for {
		r.view.take(r.store)
		if cmp.Equal(want, r.view) {
			return time.Since(begin)
		}
		select {
		case <-r.store.Changed():
		case <-time.After(20 * time.Second):
			r.t.Fatalf("after 20 s (-want +got):\n%s", cmp.Diff(want, r.view))
		}
	}
}

// unchanged verifies that nothing has changed so far.
func (r *testSource) unchanged() {
	if names := r.view.take(r.store); len(names) > 0 {
		r.t.Errorf("%v changed to %v", names, r.view)
	}
}

// waitForReport waits until a problem with all these words is reported.
func (r *testSource) waitForReport(words ...string) {
	r.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		found := slices.ContainsFunc(r.reported, func(line string) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
		})
		r.mu.Unlock()
		if found {
			return
		}
	}
	r.t.Errorf("no problem with %q; reported %q", words, r.reported)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// svc returns the manifest of a Service.
func svc(name, ip string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  clusterIP: %s\n  ports:\n"+
		"  - port: 80\n", name, ip)
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.yml"), svc("b", "10.0.0.2"))
	write(t, filepath.Join(dir, "a.json"),
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"clusterIP":"10.0.0.1"}}`)
	write(t, filepath.Join(dir, "c.yaml"),
		"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec: {cidrs: [10.0.0.0/16]}\n---\n"+
			"apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n2}\n")
	for _, name := range []string{"notes.txt", ".hidden.yaml", "x.yaml~", ".#b.yml"} {
		write(t, filepath.Join(dir, name), svc("not", "10.0.0.3"))
	}
	must(t, os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o700))
	write(t, filepath.Join(dir, "folder.yaml", "x.yaml"), svc("not", "10.0.0.3"))
	store := cluster.NewStore()
	src := New(store, Options{
		Paths: []string{dir, "-", filepath.Join(dir, "b.yml")},
		Stdin: strings.NewReader(svc("c", "10.0.0.4")), NodeName: "n1",
	})
	select {
	case <-store.Ready():
		t.Fatal("ready before anything was read")
	default:
	}
	must(t, src.Load())
	<-store.Ready()
	change := store.Take()
	if n := change.Facts.Node; n == nil || n.Name != "n1" {
		t.Errorf("the Node is %v", n)
	}
	if got := fmt.Sprint(change.Facts.ServiceCIDRs); got != "[10.0.0.0/16]" {
		t.Errorf("ServiceCIDRs %s", got)
	}
	var got []string
	for _, s := range change.Services {
		got = append(got, s.Name.String())
	}
	if d := cmp.Diff([]string{"default/a", "default/b", "default/c"}, got); d != "" {
		t.Errorf("services (-want +got):\n%s", d)
	}
}

func TestLoadErrors(t *testing.T) {
	store := cluster.NewStore()
	err := New(store, Options{Paths: []string{filepath.Join(t.TempDir(), "none"), "-"}}).Load()
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no standard input") {
		t.Errorf("error %v, want both paths in it", err)
	}
	select {
	case <-store.Ready():
		t.Error("ready although not everything could be read")
	default:
	}
}

func TestFilesAreAddedChangedAndDeleted(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, a, svc("a", "10.0.0.1"))
	r := run(t, dir)
	r.waitFor(view{"a": "[10.0.0.1] "})
	write(t, b, svc("b", "10.0.0.2"))
	r.waitFor(view{"a": "[10.0.0.1] ", "b": "[10.0.0.2] "})
	write(t, a, svc("a", "10.0.0.9")+svc("c", "10.0.0.3"))
	r.waitFor(view{"a": "[10.0.0.9] ", "b": "[10.0.0.2] ", "c": "[10.0.0.3] "})
	write(t, a, svc("c", "10.0.0.3"))
	r.waitFor(view{"b": "[10.0.0.2] ", "c": "[10.0.0.3] "})
	must(t, os.Remove(b))
	r.waitFor(view{"c": "[10.0.0.3] "})
	must(t, os.Rename(a, filepath.Join(dir, "z.yaml")))
	write(t, b, svc("b", "10.0.0.2"))
	r.waitFor(view{"b": "[10.0.0.2] ", "c": "[10.0.0.3] "})
	must(t, os.Rename(filepath.Join(dir, "z.yaml"), filepath.Join(dir, "z.bak")))
	r.waitFor(view{"b": "[10.0.0.2] "})
}

// Editors write a new file and rename it to the old name, or rename the old file first.
func TestRenameSwap(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	for name, root := range map[string]string{"folder": dir, "file": path} {
		t.Run(name, func(t *testing.T) {
			write(t, path, svc("a", "10.0.0.1"))
			r := run(t, root)
			write(t, path+".tmp", svc("a", "10.0.0.2"))
			must(t, os.Rename(path+".tmp", path))
			r.waitFor(view{"a": "[10.0.0.2] "})
			must(t, os.Rename(path, path+"~"))
			write(t, path, svc("a", "10.0.0.3"))
			r.waitFor(view{"a": "[10.0.0.3] "})
			must(t, os.Remove(path))
			r.waitFor(view{})
			write(t, path, svc("a", "10.0.0.4"))
			r.waitFor(view{"a": "[10.0.0.4] "})
		})
	}
}

// In a volume of a ConfigMap, files are links through the link ..data, which is replaced.
func TestSymlinkSwap(t *testing.T) {
	for _, name := range []string{"folder", "file"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			version := func(v, text string) {
				must(t, os.Mkdir(filepath.Join(dir, v), 0o700))
				write(t, filepath.Join(dir, v, "a.yaml"), text)
				must(t, os.Symlink(v, filepath.Join(dir, "..tmp")))
				must(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
			}
			version("..1", svc("a", "10.0.0.1"))
			must(t, os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")))
			root := dir
			if name == "file" {
				root = filepath.Join(dir, "a.yaml")
			}
			r := run(t, root)
			r.waitFor(view{"a": "[10.0.0.1] "})
			version("..2", svc("a", "10.0.0.2"))
			must(t, os.RemoveAll(filepath.Join(dir, "..1")))
			r.waitFor(view{"a": "[10.0.0.2] "})
			version("..3", svc("b", "10.0.0.3"))
			must(t, os.RemoveAll(filepath.Join(dir, "..2")))
			r.waitFor(view{"b": "[10.0.0.3] "})
			write(t, filepath.Join(dir, "..3", "a.yaml"), svc("b", "10.0.0.4")) // in place, behind two links
			r.waitFor(view{"b": "[10.0.0.4] "})
		})
	}
}

func TestFolderIsReplaced(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "m")
	must(t, os.Mkdir(dir, 0o700))
	write(t, filepath.Join(dir, "a.yaml"), svc("a", "10.0.0.1"))
	r := run(t, dir)
	must(t, os.Rename(dir, filepath.Join(top, "old")))
	r.waitForReport(dir, isKept)
	r.unchanged()
	must(t, os.Mkdir(filepath.Join(top, "new"), 0o700))
	write(t, filepath.Join(top, "new", "b.yaml"), svc("b", "10.0.0.2"))
	must(t, os.Rename(filepath.Join(top, "new"), dir))
	r.waitFor(view{"b": "[10.0.0.2] "})
	write(t, filepath.Join(dir, "c.yaml"), svc("c", "10.0.0.3"))
	r.waitFor(view{"b": "[10.0.0.2] ", "c": "[10.0.0.3] "})
	write(t, filepath.Join(top, "old", "a.yaml"), svc("a", "10.0.0.7")) // not in the folder any more
	write(t, filepath.Join(dir, "d.yaml"), svc("d", "10.0.0.4"))
	r.waitFor(view{"b": "[10.0.0.2] ", "c": "[10.0.0.3] ", "d": "[10.0.0.4] "})
}

func TestLinkedFolderIsSwapped(t *testing.T) {
	top := t.TempDir()
	for i, v := range []string{"v1", "v2"} {
		must(t, os.MkdirAll(filepath.Join(top, v, "m"), 0o700))
		write(t, filepath.Join(top, v, "m", "a.yaml"), svc("a", fmt.Sprintf("10.0.0.%d", i+1)))
	}
	must(t, os.Symlink("v1", filepath.Join(top, "current")))
	r := run(t, filepath.Join(top, "current", "m"))
	r.waitFor(view{"a": "[10.0.0.1] "})
	must(t, os.Symlink("v2", filepath.Join(top, "next")))
	must(t, os.Rename(filepath.Join(top, "next"), filepath.Join(top, "current")))
	r.waitFor(view{"a": "[10.0.0.2] "})
	write(t, filepath.Join(top, "v2", "m", "a.yaml"), svc("a", "10.0.0.3"))
	r.waitFor(view{"a": "[10.0.0.3] "})
}

// A program empties a file, and writes it in two steps. Its last content stays in force until the file is complete.
func TestHalfWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	before, after := svc("a", "10.0.0.1")+svc("b", "10.0.0.2"), svc("a", "10.0.0.1")+svc("b", "10.0.0.12")
	viewBefore, viewAfter := view{"a": "[10.0.0.1] ", "b": "[10.0.0.2] "}, view{"a": "[10.0.0.1] ", "b": "[10.0.0.12] "}
	write(t, path, before)
	s := loaded(t, path)
	for _, cut := range []int{0, 5, len(after) - 25} { // the end: nothing, within a word, "10.0.0.1"
		f, err := os.Create(path)
		must(t, err)
		_, err = f.WriteString(after[:cut])
		must(t, err)
		s.after(0, viewBefore)
		if cut < 10 { // the text is empty or not valid
			s.after(settle, viewBefore)
		}
		_, err = f.WriteString(after[cut:])
		must(t, err)
		must(t, f.Close())
		s.after(0, viewBefore)
		s.after(settle, viewAfter)
		write(t, path, before)
		s.settled(viewBefore)
	}
	s.reported.wait(t, "the file is empty")
}

func TestBrokenFileIsReportedAndKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, svc("a", "10.0.0.1")+svc("b", "10.0.0.2"))
	r := run(t, path)
	write(t, path, svc("a", "10.0.0.3")+strings.Replace(svc("b", "10.0.0.4"), "80", "http", 1))
	r.waitForReport(path, "line 18", "Service default/b", "spec.ports[0].port", "http", "whole number")
	r.waitForReport(path, "cannot be read whole", isKept)
	r.unchanged()
	write(t, path, svc("a", "10.0.0.3")+"---\n{\n")
	r.waitForReport(path, "line 11")
	r.unchanged()
	write(t, path, svc("a", "10.0.0.3"))
	r.waitFor(view{"a": "[10.0.0.3] "})
}

func TestUnreadableFileIsKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, svc("a", "10.0.0.1"))
	r := run(t, path)
	must(t, os.Remove(path)) // a folder in its place cannot be read as a file
	must(t, os.Mkdir(path, 0o700))
	r.waitForReport(path, "is a directory")
	must(t, os.Remove(path))
	write(t, path, svc("a", "10.0.0.2"))
	r.waitFor(view{"a": "[10.0.0.2] "})
}

// Prints the time until a change is in the Store: a few milliseconds on an idle machine.
func TestLatency(t *testing.T) {
	dir := t.TempDir()
	for i := range 200 {
		write(t, filepath.Join(dir, fmt.Sprintf("other%d.yaml", i)),
			svc(fmt.Sprintf("other%d", i), fmt.Sprintf("10.1.0.%d", i+1)))
	}
	path := filepath.Join(dir, "a.yaml")
	write(t, path, svc("a", "10.0.0.1"))
	r := run(t, dir)
	rest := view{}
	maps.Copy(rest, r.view)
	measure := func(what string, change func(i int), want func(i int) string) {
		var took []time.Duration
		for i := range 20 {
			change(i)
			if rest["a"] = want(i); rest["a"] == "" {
				delete(rest, "a")
			}
			took = append(took, r.waitFor(rest))
		}
		slices.Sort(took)
		t.Logf("%s: median %v, longest %v", what, took[len(took)/2], took[len(took)-1])
	}
	ip := func(i int) string { return fmt.Sprintf("10.0.%d.1", i) }
	changed := func(i int) string { return "[" + ip(i) + "] " }
	measure("change in place", func(i int) { write(t, path, svc("a", ip(i))) }, changed)
	measure("rename over", func(i int) {
		write(t, path+".tmp", svc("a", ip(i+50)))
		must(t, os.Rename(path+".tmp", path))
	}, func(i int) string { return changed(i + 50) })
	measure("remove and create", func(i int) {
		if i%2 == 0 {
			must(t, os.Remove(path))
		} else {
			write(t, path, svc("a", ip(1)))
		}
	}, func(i int) string {
		if i%2 == 0 {
			return ""
		}
		return changed(1)
	})
}
